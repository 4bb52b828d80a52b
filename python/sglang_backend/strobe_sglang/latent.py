# SPDX-License-Identifier: Apache-2.0
"""Models with Multi-head Latent Attention (MLA): a token's row in the pool is its latent vector and its rotated key.

SGLang's model has two layers of attention over it. The absorbed one attends over the rows themselves. The other
attends over keys and values that the model has made of rows: those of a step's own tokens, of the whole requests (one
shot), or of chunks of cached prefixes, whose results the model merges by their LSE.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.layout.paged_view import paged_view
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MLATokenToKVPool
from torch import Tensor

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    from strobe_sglang.metadata import Step


@dataclass(frozen=True)
class Latents:
    """The columns of a pool's rows: `latent` of the compressed key and value, then `rope` of the rotated key."""

    latent: int
    rope: int

    @staticmethod
    def of(pool: object) -> "Latents | None":
        """None of a pool that has other rows than these."""
        inner = pool.full_kv_pool if isinstance(pool, HybridLinearKVPool) else pool
        if not isinstance(inner, MLATokenToKVPool) or inner.use_dsa:
            return None
        return Latents(inner.kv_lora_rank, inner.qk_rope_head_dim)

    def has(self, layer: "RadixAttention") -> bool:
        """Whether the layer is absorbed: its keys are the pool's rows."""
        widths = (layer.tp_k_head_num, layer.qk_head_dim, layer.v_head_dim)
        return widths == (1, self.latent + self.rope, self.latent)

    def cache(self, rows: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
        """Pages of the pool's rows, and those of their values, which are views of them."""
        keys = paged_view(rows, page_size)
        return keys, keys[..., : self.latent]


def joined(k: Tensor, k_rope: Tensor | None) -> Tensor:
    """[tokens, 1, latent + rope] of parts that may be given apart."""
    return k if k_rope is None else torch.cat([k, k_rope.reshape(*k.shape[:-1], k_rope.shape[-1])], dim=-1)


def own_keys(batch: "ForwardBatch", step: "Step") -> dict[str, Any]:
    """Which of the keys that a layer was given its queries see."""
    options: dict[str, Any] = {"cu_seqlens_q": step.cu_seqlens_q, "max_seqlen_q": step.max_seqlen_q}
    if batch.attn_attend_prefix_cache:
        chunk = batch.prefix_chunk_idx
        return options | {
            "cu_seqlens_k": batch.prefix_chunk_cu_seq_lens[chunk],
            "max_seqlen_k": batch.prefix_chunk_max_seq_lens[chunk],
        }
    if batch.mha_one_shot:
        ends = step.seqused_k.cumsum(0, dtype=torch.int32)
        return options | {"cu_seqlens_k": torch.nn.functional.pad(ends, (1, 0)), "causal": True}
    return options | {"cu_seqlens_k": step.cu_seqlens_q, "max_seqlen_k": step.max_seqlen_q, "causal": True}
