# SPDX-License-Identifier: Apache-2.0
"""Contexts of prompts on CPUs, where vLLM gathers rows of a cache in the model's dtype alone."""

from dataclasses import replace

import torch
from torch import Tensor

from strobe_vllm.mla.metadata import StrobeMLAMetadata


def with_converted_contexts(
    cache: Tensor, metadata: StrobeMLAMetadata, scale: Tensor, dtype: torch.dtype
) -> tuple[Tensor, StrobeMLAMetadata]:
    """A copy in dtype of the blocks of a step's contexts, each once, and the metadata with their places in it.

    cache is [num_blocks, block_size, columns] in 8 bits, and scale what multiplies all of its elements.
    """
    prefill = metadata.prefill
    assert prefill is not None
    assert prefill.chunked_context is not None
    table = prefill.block_table
    first_rows = torch.arange(table.shape[1]) * cache.shape[1]
    is_context = first_rows < prefill.chunked_context.context_lens.unsqueeze(1)
    blocks, places = table[is_context].unique(return_inverse=True)
    new_table = torch.zeros_like(table)
    new_table[is_context] = places.to(table.dtype)
    rows = cache[blocks].to(dtype) * scale
    return rows, replace(metadata, prefill=replace(prefill, block_table=new_table))
