# SPDX-License-Identifier: Apache-2.0
"""Makes the masks of a forward: transformers calls make_mask once for each kind of mask that its layers have."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import masking_utils

from strobe.integrations.transformers.mask import Kind, Plan, Mask
from strobe.integrations.transformers.mask_functions import Form, Rule, recognise
from strobe.integrations.transformers.padding import Place, packed, padded
from strobe.torch.ops import is_traced


def make_mask(**call: Any) -> Tensor | None:
    """The mask of the mask function in `call`; None where causal attention without a mask computes the same.

    This waits for the GPU so that no layer has to: where there is padding decides how the mask is computed. A compiler
    cannot wait and gets the boolean tensor, or None as for "sdpa".
    """
    if torch.jit.is_tracing() or is_traced(*call.values()):
        if not getattr(call.get("config"), "is_causal", True):
            call["allow_is_bidirectional_skip"] = False  # the layers without a mask are causal nevertheless
        return masking_utils.sdpa_mask(**call)
    mask = None if _is_captured() else _described(call)
    if mask is None:
        return _exact(call)
    return None if _can_be_left_out(mask, call) else mask


def _is_captured() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _exact(call: dict[str, Any]) -> Mask:
    with torch.inference_mode(False):  # where tensors count what is written to them
        mask = masking_utils.sdpa_mask(**call | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return Mask(Plan(Kind.EXACT), mask.shape, anchor=mask.new_empty(0), exact=mask)


def _can_be_left_out(mask: Mask, call: dict[str, Any]) -> bool:
    """Where the layers do the same without a mask: causal from the first key on, or one query that sees every key.

    Full attention of more queries is not left out, since some models have it in layers that say that they are causal.
    """
    seqlen_q, seqlen_k = mask.shape[-2:]
    if mask.plan.kind is not Kind.RULE or not call.get("allow_is_causal_skip", True):
        return False
    if seqlen_q == 1:
        return mask.plan == Plan(Kind.RULE)
    return mask.plan.rule == Rule(causal=True) and seqlen_k - mask.plan.unused == seqlen_q


def _place(call: dict[str, Any]) -> Place | None:
    batch, seqlen_k, kv_offset = call["batch_size"], call["kv_length"], int(call.get("kv_offset", 0))
    if "cache_position" not in call:
        q_offset, device = int(call.get("q_offset", 0)), torch.device(call.get("device", "cpu"))
        return Place(batch, call["q_length"], seqlen_k, q_offset, kv_offset, device)
    positions = call["cache_position"]  # of transformers 4
    first, follow = torch.stack((positions[0], (positions.diff() == 1).all().to(positions.dtype))).tolist()
    return Place(batch, positions.shape[0], seqlen_k, first, kv_offset, positions.device) if follow else None


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
