# SPDX-License-Identifier: Apache-2.0
"""SGLang's masks of draft trees as Strobe's ``tree_mask``: a number for each draft token, whose bit j stands for draft
token j of its request."""

import torch
from torch import Tensor


def words_of(mask: Tensor) -> Tensor:
    """[requests * drafts] int64 of a mask [requests, drafts, drafts] of bool: query, key."""
    bits = torch.arange(mask.shape[-1], device=mask.device)
    return (mask.long() << bits).sum(-1).flatten()


def drafts_only(mask: Tensor, requests: int, drafts: int) -> Tensor:
    """[requests, drafts, drafts] of the layout QLEN_ONLY, flat, which may have other requests behind these.

    Requests that pad a captured batch have no part of the mask: theirs is the last one's.
    """
    masks = mask.view(-1, drafts, drafts)
    if masks.shape[0] < requests:
        masks = torch.cat([masks, masks[-1:].expand(requests - masks.shape[0], -1, -1)])
    return masks[:requests]


def drafts_of_full(mask: Tensor, seq_lens: Tensor, drafts: int) -> Tensor:
    """[requests, drafts, drafts] of the layout FULL_MASK: for each request in turn [drafts, seq_len + drafts], flat.

    seq_lens [requests] stays on the device. Requests that pad a captured batch are behind the mask's end.
    """
    widths = seq_lens.long() + drafts
    starts = (widths * drafts).cumsum(0) - widths * drafts
    at = torch.arange(drafts, device=mask.device)
    rows = starts[:, None] + at * widths[:, None] + seq_lens[:, None]
    places = rows[:, :, None] + at
    return mask[places.clamp_(max=mask.numel() - 1)]
