# SPDX-License-Identifier: Apache-2.0
"""Between padded batches and packed sequences."""

import torch
from torch import Tensor


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    return tensor.index_select(0, indices)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens of hidden_states [batch, seqlen, ..], where attention_mask [batch, seqlen] is true.

    Rows where ``unused_mask`` is true are kept, but not used. Gives (tokens [total, ..], their rows in the flattened
    batch, cu_seqlens [batch + 1] int32, the longest length, seqused [batch] int32).
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1).index_select(0, indices), indices, cu_seqlens, int(lengths.max()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """[batch, seqlen, ..] with the tokens at their rows and zeros elsewhere."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))
