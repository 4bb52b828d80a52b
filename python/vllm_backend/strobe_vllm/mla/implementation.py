# SPDX-License-Identifier: Apache-2.0
"""The attention of a layer of MLA: new rows into the cache of latents, and the decodes' attention over them.

vLLM multiplies queries and results by the matrices of the heads. What it calls forward_mha, the attention of prompts
over keys and values of each head, it hands to a backend of its own: prefill.py.
"""

from typing import Any

import strobe
import torch
from strobe.torch.context_parallel.decode import shard_options
from torch import Tensor
from vllm import envs
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.mla_attention import MLACommonImpl
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionLayer, AttentionType, max_decode_query_len

from strobe_vllm import caches
from strobe_vllm.limits import FLOAT8_CACHES, mla_combination_reason, mla_decodes_reason, mla_layer_reason
from strobe_vllm.mla.contexts import with_converted_contexts
from strobe_vllm.mla.metadata import StrobeMLADecodeMetadata, StrobeMLAMetadata


class StrobeMLAImpl(MLACommonImpl[StrobeMLAMetadata]):
    """NotImplementedError where limits.py has a reason: vLLM's CPU platform does not ask the backend."""

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_pcp: bool = False
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **dimensions: Any,
    ) -> None:
        layer_reason = mla_layer_reason(
            {
                "alibi_slopes": alibi_slopes is not None,
                "sliding_window": sliding_window is not None,
                "logits_soft_cap": bool(logits_soft_cap),
                "kv_sharing_target_layer_name": kv_sharing_target_layer_name is not None,
                "cross-attention": attn_type != AttentionType.DECODER,
                "qk_rope_head_dim of 0": dimensions["qk_rope_head_dim"] == 0,
                "VLLM_BATCH_INVARIANT": bool(envs.VLLM_BATCH_INVARIANT),
            }
        )
        reason = layer_reason or mla_combination_reason(torch.get_default_dtype(), kv_cache_dtype, on_gpu=False)
        if reason:
            raise NotImplementedError(reason)
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **dimensions,
        )
        self.supports_quant_query_input = False
        self._columns = [self.kv_lora_rank, self.qk_rope_head_dim]
        self.is_float8 = kv_cache_dtype in FLOAT8_CACHES
        if not current_platform.is_cpu():
            self._check_decodes(kv_cache_dtype)
        self._converts_contexts = self.is_float8 and current_platform.is_cpu()
        if self._converts_contexts:
            self.kv_cache_dtype = "auto"  # of the rows that vLLM gathers, which are in the model's dtype then

    def _check_decodes(self, kv_cache_dtype: str) -> None:
        """Ranks that share keys attend with the heads of all."""
        heads = self.num_heads * self.dcp_world_size
        reason = mla_decodes_reason(kv_cache_dtype, heads, max_decode_query_len(get_current_vllm_config()))
        if reason:
            raise NotImplementedError(reason)

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
    ) -> None:
        """Writes rows of kv_c_normed [tokens, latent] and k_pe [tokens, 1, rope], side by side, to slots of a cache.

        kv_cache is [num_blocks, block_size, latent + rope]; -1 is no slot.
        """
        if kv_cache.numel() == 0:
            return
        rows = caches.stored(kv_cache, is_float8=self.is_float8).unsqueeze(2)
        latents, rotated = rows.split(self._columns, dim=-1)
        scales = dict.fromkeys(("k_descale", "v_descale"), caches.scale_of(k_scale)) if self.is_float8 else None
        caches.write((latents, rotated), kv_c_normed.unsqueeze(1), k_pe, slot_mapping.flatten(), scales)

    def forward_mqa(
        self,
        q: Tensor | tuple[Tensor, Tensor],
        kv_c_and_k_pe_cache: Tensor,
        attn_metadata: StrobeMLAMetadata,
        layer: AttentionLayer,
    ) -> tuple[Tensor, Tensor | None]:
        """out [tokens, heads, latent] and, where ranks share keys, lse [tokens, heads], of the decodes of a step.

        q are the queries' latent and rotated parts [tokens, heads, ..], or both side by side.
        """
        latent, rotated = q if isinstance(q, tuple) else q.split(self._columns, dim=-1)
        decode = attn_metadata.decode
        assert decode is not None
        cache = caches.stored(kv_c_and_k_pe_cache, is_float8=self.is_float8)
        options = self._visible(latent, decode, causal=attn_metadata.causal)
        if self.is_float8:
            options["k_descale"] = caches.scale_of(layer._k_scale)
        if not self.need_to_return_lse_for_decode:
            return strobe.mla(latent, rotated, cache, scale=self.scale, **options), None
        out, lse = strobe.mla(latent, rotated, cache, scale=self.scale, return_lse=True, **options)
        return out, lse.transpose(0, 1)

    def _visible(self, q: Tensor, decode: StrobeMLADecodeMetadata, *, causal: bool) -> dict[str, Any]:
        """Which keys each query has, of those that this rank has."""
        options = {
            "cu_seqlens_q": decode.query_start_loc,
            "max_seqlen_q": decode.max_query_len,
            "page_table": decode.block_table,
            "seqused_k": decode.seq_lens,
            "causal": causal,
        }
        if decode.shard.world == 1 or decode.max_query_len == 1:
            return options
        assert decode.dcp_tot_seq_lens is not None
        return shard_options(q, decode.dcp_tot_seq_lens, decode.shard, options)

    def _compute_prefill_context(
        self, q: Tensor, kv_c_and_k_pe_cache: Tensor, attn_metadata: StrobeMLAMetadata, k_scale: Tensor
    ) -> Any:
        """out and lse of the prompts' attention to their contexts, whose rows vLLM gathers; on a CPU as they are."""
        if self._converts_contexts:
            cache = caches.stored(kv_c_and_k_pe_cache, is_float8=True)
            kv_c_and_k_pe_cache, attn_metadata = with_converted_contexts(cache, attn_metadata, k_scale, q.dtype)
        return super()._compute_prefill_context(q, kv_c_and_k_pe_cache, attn_metadata, k_scale)
