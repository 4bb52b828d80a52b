# SPDX-License-Identifier: Apache-2.0
"""Attention of PyTorch's tensors: past the dispatcher where nothing records the call, else as an operator."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from strobe._attention import run
from strobe._options import ScoreOptions
from strobe.torch import ops

_DEFAULTS: dict[str, Any] = {
    "scale": None,
    "chunk": 0,
    "softcap": 0.0,
    "dropout": 0.0,
    "deterministic": False,
    "block_size": 128,
    "max_seqlen_q": -1,
    "max_seqlen_k": -1,
    "threads": 0,
}
_CAUSAL = {False: "none", None: "none", True: "bottom_right", "bottom_right": "bottom_right", "top_left": "top_left"}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool = False,
    return_max_logits: bool = False,
    **options: Unpack[ScoreOptions],
) -> Any:
    """``strobe.attention`` with gradients, for q, k, v, bias and sink, through the output and through lse.

    Shapes, dtypes, options and errors are those of strobe.attention; where the last axis is not dense the tensor is
    copied. Under autocast q, k and v are cast to its dtype. With dropout and no ``seed`` the call draws one from
    PyTorch's generator of q's device. Runs on the current stream. Second derivatives raise NotImplementedError; so does
    the backward of a call that the engine has in the forward alone.
    """
    q, k, v = (ops.rows(x) for x in cast(q, k, v))
    alibi_slopes = options.get("alibi_slopes")
    if alibi_slopes is not None and alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError("alibi_slopes requires a gradient, which attention does not have: detach it")
    if is_eager_inference(q, k, v, options.get("bias"), options.get("sink")):
        if options.get("dropout") and not _is_seeded(options):
            drawn = _draw(q)
            if drawn.is_cuda:
                options["random_state"] = drawn.view(torch.int32)
            else:
                options["seed"], options["offset"] = drawn.tolist()
        return run(q, k, v, None, return_lse, return_max_logits, options)
    arguments = operator_arguments(q, k, v, options, return_max_logits)
    compute = torch.ops.strobe.attention if ops.is_traced(*arguments[: ops.TENSORS]) else _Recorded.apply
    o, lse, max_logits = compute(*arguments)
    if not return_lse and not return_max_logits:
        return o
    return (o, *((lse,) if return_lse else ()), *((max_logits,) if return_max_logits else ()))


def cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype, where it is on."""
    device = "cuda" if tensors[0].is_cuda else "cpu"
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.dtype.is_floating_point else x for x in tensors)


def is_eager_inference(*tensors: Tensor | None) -> bool:
    """Nothing records the call, neither the dispatcher nor a gradient's tape."""
    if ops.is_traced(*tensors):
        return False
    return not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in tensors)


class _Recorded(torch.autograd.Function):
    """The operator for eager training: the same functions on the tape, without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        # Not as a setup_context of its own, for which PyTorch would read this function's signature in every call.
        outputs = ops.forward(*arguments)
        ops.setup_context(ctx, arguments, outputs)
        return outputs

    backward = staticmethod(ops.autograd_backward)


def operator_arguments(
    q: Tensor, k: Tensor, v: Tensor, options: ScoreOptions, return_max_logits: bool = False
) -> tuple[Any, ...]:
    """What torch.ops.strobe.attention takes for such a call."""
    unknown = options.keys() - ScoreOptions.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"{min(unknown)} is no option of strobe.torch.attention: the options are "
            f"{', '.join(ScoreOptions.__annotations__)}"
        )
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    causal = given.pop("causal", False)
    if causal not in _CAUSAL:
        raise ValueError(f'causal is "{causal}": it must be True, False, "bottom_right" or "top_left"')
    left, right = given.pop("window", (-1, -1))
    given |= {"causal": _CAUSAL[causal], "window_left": left, "window_right": right, "random": _random(q, given)}
    return (
        *(q, k, v),
        *(given.get(name) for name in ops.TENSOR_NAMES),
        *(given.get(name, _DEFAULTS.get(name)) for name in ops.VALUE_NAMES),
        return_max_logits,
    )


def _is_seeded(options: Mapping[str, Any]) -> bool:
    return any(options.get(name) is not None for name in ("seed", "offset", "random_state"))


def _draw(q: Tensor) -> Tensor:
    """From the generator of q's device: without waiting for it, and anew in each replay of a CUDA graph."""
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device)


def _random(q: Tensor, options: dict[str, Any]) -> Tensor | None:
    """Seed and offset as a tensor, since compiled graphs take new ones as data and not as code."""
    if not options.get("dropout"):
        return None
    if options.get("random_state") is not None:
        return options["random_state"].view(torch.int64)
    if not _is_seeded(options):
        return _draw(q)
    pair = (int(options.get(name, 0)) for name in ("seed", "offset"))
    return torch.tensor([number - 2**64 if number >= 2**63 else number for number in pair], dtype=torch.int64)
