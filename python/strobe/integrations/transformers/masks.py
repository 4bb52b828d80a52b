# SPDX-License-Identifier: Apache-2.0
"""Makes the masks of a forward: transformers calls make_mask once for each kind of mask that its layers have."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import masking_utils

from strobe.integrations.transformers.mask import Kind, Mask, Plan
from strobe.integrations.transformers.mask_functions import Form, Rule, recognise
from strobe.integrations.transformers.padding import Place, packed, padded
from strobe.torch.ops import is_traced


def make_mask(**call: Any) -> Tensor | None:
    """The mask of the mask function in `call`; None where every query sees every key and the model allows that.

    This waits for the GPU so that no layer has to: where there is padding decides how the mask is computed. A compiler
    cannot wait. It gets the tensor that "eager" has, but none for a plain causal mask, as for "sdpa".
    """
    if not getattr(call.get("config"), "is_causal", True):
        call["allow_is_bidirectional_skip"] = False  # its layers say that they are causal, and count if compiled
    if torch.jit.is_tracing() or is_traced(*call.values()):
        return _traced(call)
    mask = None if _is_captured() else _described(call)
    if mask is None:
        exact = _boolean(call)
        return Mask(Plan(Kind.EXACT), exact.shape, anchor=_anchor(call, exact.device), exact=exact)
    return None if mask.plan == Plan(Kind.RULE) and call.get("allow_is_bidirectional_skip", False) else mask


def _is_captured() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _traced(call: dict[str, Any]) -> Tensor | None:
    if masking_utils.sdpa_mask(**call) is None:
        return None
    return masking_utils.eager_mask(**call)


def _boolean(call: dict[str, Any]) -> Tensor:
    """The mask itself, whatever could be left out."""
    return masking_utils.sdpa_mask(**call | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def _anchor(call: dict[str, Any], device: torch.device) -> Tensor:
    return torch.empty(0, dtype=call.get("dtype", torch.float32), device=device)


def _place(call: dict[str, Any]) -> Place | None:
    batch, seqlen_k, kv_offset = call["batch_size"], call["kv_length"], int(call.get("kv_offset", 0))
    if "cache_position" not in call:
        q_offset, device = int(call.get("q_offset", 0)), torch.device(call.get("device", "cpu"))
        return Place(batch, call["q_length"], seqlen_k, q_offset, kv_offset, _anchor(call, device))
    positions = call["cache_position"]  # of transformers 4
    first, follow = torch.stack((positions[0], (positions.diff() == 1).all().to(positions.dtype))).tolist()
    anchor = _anchor(call, positions.device)
    return Place(batch, positions.shape[0], seqlen_k, first, kv_offset, anchor) if follow else None


def _described(call: dict[str, Any]) -> Mask | None:
    """The mask by options, or None where only the boolean tensor says it."""
    form = recognise(call.get("mask_function", masking_utils.causal_mask_function))
    place = None if form is None else _place(call)
    if form is None or place is None:
        return None
    padding = call.get("attention_mask")
    if padding is not None and (padding.dim() != 2 or padding.shape[0] != place.batch):
        return None
    if form.documents is not None or form.positions is not None:
        return None if padding is not None else packed(form, place)
    keys = place.seqlen_k
    if form.rule.causal:
        if place.offset < 0 or place.offset + place.seqlen_q > keys:
            return None
        keys = place.offset + place.seqlen_q
    elif form.rule.has_diagonal and (place.offset != 0 or place.seqlen_q != keys):
        return None
    form = replace(form, rule=form.rule.within(keys))
    tokens = None if padding is None else _tokens(padding, place.kv_offset, keys)
    if place.seqlen_q == 1:
        form, tokens = _of_one_query(form, tokens, place, keys)
    return padded(form, tokens, place, keys)


def _tokens(padding: Tensor, kv_offset: int, keys: int) -> Tensor:
    """Which keys are tokens, [batch, keys]: none beyond the end of the 2-D mask."""
    tokens = padding[:, kv_offset : kv_offset + keys].bool()
    return pad(tokens, (0, keys - tokens.shape[1]))


def _of_one_query(form: Form, tokens: Tensor | None, place: Place, keys: int) -> tuple[Form, Tensor | None]:
    """The same without a diagonal: the keys that the rule hides from the only query count as padding."""
    rule = replace(form.rule, causal=False)
    if rule.has_diagonal:
        k = torch.arange(keys, device=place.device)[None]
        start = 0 if form.chunk_start is None else form.chunk_start[:, None] - place.kv_offset
        shown = rule.shows(k[:, -1:] - start, k - start).expand(place.batch, -1)
        tokens = shown if tokens is None else tokens & shown
    return Form(Rule()), tokens
