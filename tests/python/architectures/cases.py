# SPDX-License-Identifier: Apache-2.0
"""What every architecture of transformers computes with attn_implementation="strobe", beside "eager" in float32.

A case is a function of a model and of the implementation's name that gives a tensor: outputs of tokens, not of padding,
or gradients. Both implementations have the same weights.
"""

import contextlib
import inspect

import torch
import transformers
from strobe.integrations.transformers import register
from strobe.integrations.transformers.attention import attend

from architectures.tiny import VOCABULARY

BATCH, SEQLEN, SOURCE = 3, 14, 12
TOLERANCE = 3e-5  # of the largest output or gradient
FACTOR = 8  # times eager's own error, where a model amplifies rounding
_calls = 0


def count_calls():
    """Registers Strobe's attention with a counter of its calls."""
    register()

    def counted(*arguments, **keywords):
        global _calls
        _calls += 1
        return attend(*arguments, **keywords)

    transformers.AttentionInterface.register("strobe", counted)


def calls():
    """That count_calls() has counted."""
    return _calls


def _random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape, seed=1):
    return torch.randint(5, VOCABULARY - 30, shape, generator=torch.Generator().manual_seed(seed))


def padding(side, seqlen=SEQLEN):
    mask = torch.ones(BATCH, seqlen, dtype=torch.long)
    for row, hidden in enumerate((0, 5, 3)):
        if side == "left":
            mask[row, :hidden] = 0
        elif side == "right":
            mask[row, seqlen - hidden :] = 0
        else:  # between tokens
            mask[row, 2 : 2 + hidden] = 0
    return mask


def forward(model, **inputs):
    """The logits, or the last hidden state of models without: inputs that the model does not take are left out."""
    accepted = inspect.signature(model.forward).parameters
    inputs = {name: value for name, value in inputs.items() if name in accepted}
    output = model(**inputs)
    return output, output.logits if getattr(output, "logits", None) is not None else output[0]


def without_mask(model, _):
    return forward(model, input_ids=tokens(BATCH, SEQLEN))[1]


def padded(side):
    def run(model, _):
        mask = padding(side)
        return forward(model, input_ids=tokens(BATCH, SEQLEN) * mask, attention_mask=mask)[1][mask.bool()]

    return run


def packed(batch):
    """Documents by position_ids that begin again."""

    def run(model, _):
        positions = torch.cat([torch.arange(n) for n in (5, 7, 2)])[None].repeat(batch, 1)
        if batch > 1:
            positions[1] = torch.cat([torch.arange(n) for n in (3, 11)])
        return forward(model, input_ids=tokens(batch, SEQLEN), position_ids=positions, use_cache=False)[1]

    return run


def mask_of_four_axes(dtype):
    """What the caller says alone counts: neither causal nor a window."""

    def run(model, implementation):
        visible = torch.rand(BATCH, 1, SEQLEN, SEQLEN, generator=torch.Generator().manual_seed(4)) < 0.5
        visible |= torch.eye(SEQLEN, dtype=torch.bool)
        mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
        if dtype == torch.bool and implementation == "strobe" and model._supports_sdpa:  # "eager" adds masks
            mask = visible
        return forward(model, input_ids=tokens(BATCH, SEQLEN), attention_mask=mask, use_cache=False)[1]

    return run


def cached(kind):
    """A padded prompt, then several tokens at once, then two alone."""

    def run(model, _):
        ids, mask = tokens(BATCH, SEQLEN), padding("left")
        cache, outputs = None, []
        if kind == "static":
            cache = transformers.StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=20)
        for begin, end in ((0, 9), (9, 12), (12, 13), (13, 14)):
            output, logits = forward(
                model,
                input_ids=ids[:, begin:end],
                attention_mask=mask[:, :end],
                position_ids=(mask[:, :end].cumsum(1) - 1).clamp(min=0)[:, begin:],
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            if cache.get_seq_length() < end:
                raise ValueError("the model does not fill its cache")
            outputs.append(logits[mask[:, begin:end].bool()])
        return torch.cat(outputs)

    return run


def generated(implementation):
    def run(model, _):
        settings = {} if implementation is None else {"cache_implementation": implementation}
        if model.config.is_encoder_decoder:
            settings["decoder_start_token_id"] = 1
        mask = padding("left")
        return model.generate(
            input_ids=tokens(BATCH, SEQLEN) * mask,
            attention_mask=mask,
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            disable_compile=True,
            **settings,
        ).double()

    return run


def gradient_of(case):
    def run(model, implementation):
        model.zero_grad(set_to_none=True)
        output = case(model, implementation)
        (output * _random(*output.shape, seed=6)).sum().backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        model.zero_grad(set_to_none=True)
        largest = max(g.abs().max() for g in gradients)
        return torch.cat([g / largest for g in gradients])

    return run


def with_source(target, source, side=None):
    """An encoder and a decoder of `target` tokens, both padded."""

    def run(model, _):
        mask, target_mask = torch.ones(BATCH, source, dtype=torch.long), torch.ones(BATCH, target, dtype=torch.long)
        if side is not None:
            mask = padding(side, source)
            target_mask = padding("right", target) if target > 5 else target_mask
        return forward(
            model,
            input_ids=tokens(BATCH, source) * mask,
            attention_mask=mask,
            decoder_input_ids=tokens(BATCH, target, seed=2) * target_mask,
            decoder_attention_mask=target_mask,
        )[1][target_mask.bool()]

    return run


def over_hidden_states(model, _):
    """A decoder with cross-attention, both sides padded."""
    mask, source_mask = padding("left"), padding("right", SOURCE)
    states = _random(BATCH, SOURCE, model.config.hidden_size, seed=3)
    return forward(
        model,
        input_ids=tokens(BATCH, SEQLEN) * mask,
        attention_mask=mask,
        encoder_hidden_states=states,
        encoder_attention_mask=source_mask,
    )[1][mask.bool()]


_DECODERS_AND_ENCODERS = {
    "no mask": without_mask,
    "left": padded("left"),
    "right": padded("right"),
    "holes": padded("holes"),
    "packed": packed(1),
    "packed 2": packed(2),
    "4-D bool": mask_of_four_axes(torch.bool),
    "4-D float": mask_of_four_axes(torch.float32),
    "cache": cached("dynamic"),
    "static": cached("static"),
    "generate": generated(None),
    "gen static": generated("static"),
    "gradient": gradient_of(padded("left")),
    "grad packed": gradient_of(packed(2)),
}
_WITH_CROSS_ATTENTION = {
    "cross": over_hidden_states,
    "grad cross": gradient_of(over_hidden_states),
}
_BOTH = {
    "no mask": with_source(6, SOURCE),
    "cross": with_source(6, SOURCE, "right"),
    "cross left": with_source(4, SOURCE, "left"),
    "cross holes": with_source(1, SOURCE, "holes"),
    "cross long": with_source(17, SOURCE, "right"),
    "cross equal": with_source(SOURCE, SOURCE, "right"),
    "generate": generated(None),
    "gen static": generated("static"),
    "gradient": gradient_of(with_source(6, SOURCE, "right")),
}


def of_image(model, _):
    config = model.config
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 32) or 32
    size = (size, size) if isinstance(size, int) else tuple(size)
    return forward(model, pixel_values=_random(2, getattr(vision, "num_channels", 3) or 3, *size, seed=5))[1]


def of_sound(model, _):
    name = str(model.main_input_name)
    bins = next(
        (n for n in ("num_mel_bins", "feature_size", "input_dim", "num_channels") if hasattr(model.config, n)), None
    )
    frames = _random(2, 4000, seed=5)
    if name == "input_features":
        frames = _random(
            2,
            getattr(model.config, bins) if bins else 80,
            2 * getattr(model.config, "max_source_positions", 64),
            seed=5,
        )
    return forward(model, **{name: frames}, decoder_input_ids=tokens(2, 6))[1]


_OTHERS = {"pixel_values": of_image, "input_features": of_sound, "input_values": of_sound}


def cases_of(model):
    """By name, in the order of the table."""
    name = str(model.main_input_name)
    if name == "input_ids" and model.config.is_encoder_decoder:
        return _BOTH
    if name == "input_ids":
        has_cross_attention = getattr(model.config, "add_cross_attention", False)
        return _DECODERS_AND_ENCODERS | (_WITH_CROSS_ATTENTION if has_cross_attention else {})
    if name in _OTHERS:
        return {"no mask": _OTHERS[name], "gradient": gradient_of(_OTHERS[name])}
    return {}


_NOT_SERVED = ("not served", "no attention of this model goes through the interface")


def _evaluate(model, case, implementation):
    model.set_attn_implementation(implementation)
    torch.manual_seed(0)
    needs_gradient = case.__qualname__.startswith("gradient_of")
    with contextlib.nullcontext() if needs_gradient else torch.no_grad():
        return case(model, implementation)


def outcome(model, case):
    """(what happened, the words for it): "equal", "refused", "wrong", "failed", or "not comparable" with eager."""
    try:
        expected = _evaluate(model, case, "eager")
        if not expected.isfinite().all():
            return "not comparable", "eager gives NaN or infinity"
    except Exception as error:
        return "not comparable", f"eager: {type(error).__name__}: {error}"
    before = _calls
    try:
        actual = _evaluate(model, case, "strobe")
    except NotImplementedError as error:
        return "refused", str(error)
    except Exception as error:
        if _calls == before:
            return _NOT_SERVED
        return "failed", f"{type(error).__name__}: {error}"
    if _calls == before:
        return _NOT_SERVED
    if actual.shape != expected.shape:
        return "wrong", f"shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    error = _error(actual, expected)
    if error <= TOLERANCE:
        return "equal", f"{error:.1e}"
    return _beside_float64(model, case, actual, expected)


def _error(actual, expected):
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1))


def _beside_float64(model, case, actual, expected):
    """Whether Strobe is about as far from the same model in float64 as eager is."""
    try:
        exact = _evaluate(model.double(), case, "eager")
    except Exception as error:
        return "wrong", f"{_error(actual, expected):.1e}; no float64: {type(error).__name__}: {error}"
    finally:
        model.float()
    error, allowed = _error(actual, exact), FACTOR * _error(expected, exact)
    words = f"{error:.1e} from float64, eager {allowed / FACTOR:.1e}"
    return ("equal" if error <= max(TOLERANCE, allowed) else "wrong"), words
