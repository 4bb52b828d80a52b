# SPDX-License-Identifier: Apache-2.0
"""The attention of a layer: new keys and values into the cache, and the queries' attention over it."""

from typing import Any

import strobe
import torch
from strobe.torch.ops import rows
from torch import Tensor
from vllm import envs
from vllm.v1.attention.backend import AttentionImpl, AttentionLayer, AttentionType

from strobe_vllm import caches, shards, spans
from strobe_vllm.limits import (
    FLOAT8_CACHES,
    cache_dtype_reason,
    conversion_reason,
    head_size_reason,
    reject_scaled_output,
    shards_reason,
)
from strobe_vllm.metadata import StrobeMetadata

_WITHOUT_CACHE = (AttentionType.ENCODER_ONLY, AttentionType.ENCODER)


class StrobeAttentionImpl(AttentionImpl[StrobeMetadata]):
    """NotImplementedError where limits.py has a reason: vLLM's CPU platform does not ask the backend."""

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        reason = (
            head_size_reason(head_size, on_gpu=False)
            or cache_dtype_reason(kv_cache_dtype)
            or conversion_reason(torch.get_default_dtype(), kv_cache_dtype)
        )
        if reason:
            raise NotImplementedError(reason)
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self._sink = None if sinks is None else sinks.detach().float()
        self.is_float8 = kv_cache_dtype in FLOAT8_CACHES
        self._scores: dict[str, Any] = {"scale": self.scale, "softcap": float(logits_soft_cap or 0.0)}
        self._row_invariant = bool(envs.VLLM_BATCH_INVARIANT)
        self._slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        if self.dcp_world_size > 1 and attn_type not in _WITHOUT_CACHE:
            self._check_shards()

    def _check_shards(self) -> None:
        reason = shards_reason(
            {
                "sliding_window": self.sliding_window is not None,
                "alibi_slopes": self._slopes is not None,
                "cross-attention": self.attn_type != AttentionType.DECODER,
                "kv_sharing_target_layer_name": self.kv_sharing_target_layer_name is not None,
                "VLLM_BATCH_INVARIANT": self._row_invariant,
            }
        )
        if reason:
            raise NotImplementedError(reason)

    @property
    def needs_one_call(self) -> bool:
        """Whether the layer has what strobe.shared_prefix_attention lacks: the builder asks before a step is built."""
        by_position = self.sliding_window is not None or self._slopes is not None
        return by_position or self.sinks is not None or self.is_float8 or self._row_invariant

    def _reads_own_keys(self, step: StrobeMetadata) -> bool:
        """Whether the step's keys and values, as the cache holds them, are all that its queries see."""
        has_own = self.attn_type == AttentionType.DECODER and self.kv_sharing_target_layer_name is None
        return has_own and not step.has_context and not self.is_float8 and not self._row_invariant

    def _reads_shared_keys(self, step: StrobeMetadata) -> bool:
        """Whether keys that all requests share are read once."""
        return step.shared_tokens > 0 and step.mm_prefix_range is None and not self.needs_one_call

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Sinks in float32: the parameter that was given has its values only now."""
        if self.sinks is not None:
            self._sink = self.sinks.detach().float()

    def forward(
        self,
        layer: AttentionLayer,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: StrobeMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """output, to which the attention of query is written.

        query and output are [tokens, num_heads, head_size], key and value [tokens, num_kv_heads, head_size], rows
        behind num_actual_tokens padding; kv_cache is [num_blocks, num_kv_heads, block_size, 2 * head_size], with any
        strides whose last is 1. Without metadata, in profiling runs, output is zeros.
        """
        reject_scaled_output(output_scale, output_block_scale)
        if attn_metadata is None:
            return output.fill_(0)
        tokens = attn_metadata.num_actual_tokens
        q, out = query[:tokens], output[:tokens]
        if self.attn_type in _WITHOUT_CACHE:
            self._attend_in_place(q, key[:tokens], value[:tokens], out, attn_metadata)
            return output
        k, v = caches.keys_and_values(kv_cache, self.head_size, is_float8=self.is_float8)
        options = self._scales(layer) | {"page_table": attn_metadata.block_table, "seqused_k": attn_metadata.seq_lens}
        sight = self._sight(attn_metadata)
        if self.dcp_world_size > 1:
            self._attend_over_shards(q, (key[:tokens], value[:tokens]), (k, v), out, attn_metadata, self._scales(layer))
        elif isinstance(attn_metadata.causal, Tensor):
            self._attend_by_request(q, k, v, out, attn_metadata, options)
        elif self._reads_own_keys(attn_metadata):
            self._attend_in_place(q, key[:tokens], value[:tokens], out, attn_metadata, **sight)
        elif self._reads_shared_keys(attn_metadata):
            self._attend_shared(q, k, v, out, attn_metadata, causal=attn_metadata.causal)
        else:
            self._attend(q, k, v, out, attn_metadata, **sight, **options)
        return output

    def do_kv_cache_update(
        self, layer: AttentionLayer, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Writes key and value [tokens, num_kv_heads, head_size] to the slots of the cache; -1 is no slot."""
        if self.attn_type in _WITHOUT_CACHE or kv_cache.numel() == 0:
            return
        cache = caches.keys_and_values(kv_cache, self.head_size, is_float8=self.is_float8)
        caches.write(cache, key, value, slot_mapping, self._scales(layer))

    def _scales(self, layer: AttentionLayer) -> dict[str, Tensor]:
        """Of an fp8 cache; the queries of its calls stay as they are."""
        if not self.is_float8:
            return {}
        return {"k_descale": caches.scale_of(layer._k_scale), "v_descale": caches.scale_of(layer._v_scale)}

    def _window(self, *, causal: bool) -> tuple[int, int]:
        """vLLM's windows count the query's own key; without a causal mask they are as wide on either side."""
        if self.sliding_window is None:
            return -1, -1
        return self.sliding_window - 1, 0 if causal else self.sliding_window - 1

    def _sight(self, step: StrobeMetadata) -> dict[str, Any]:
        """Which keys the queries of a step see, as options. Windows are no shorter than spans, or cut them short."""
        last = step.mm_prefix_range
        if last is None:
            return {"causal": step.causal}
        left, _ = self._window(causal=True)
        captures = {"last": last, "start": step.query_start_loc}
        return {"causal": False, "window": (left, -1), "mask": spans.MASK, "captures": captures}

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor | None,
        step: StrobeMetadata,
        *,
        causal: bool,
        window: tuple[int, int] | None = None,
        **options: Any,
    ) -> Any:
        return strobe.attention(
            rows(q),
            k,
            v,
            out=out,
            cu_seqlens_q=step.query_start_loc,
            max_seqlen_q=step.max_query_len,
            causal=causal,
            window=self._window(causal=causal) if window is None else window,
            alibi_slopes=self._slopes,
            sink=self._sink,
            row_invariant=self._row_invariant,
            **self._scores,
            **options,
        )

    def _attend_in_place(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor | None,
        step: StrobeMetadata,
        *,
        causal: bool = False,
        **options: Any,
    ) -> Any:
        """Keys and values are the call's own: of encoders, which have no cache, or of a step without context."""
        own = {"cu_seqlens_k": step.query_start_loc, "max_seqlen_k": step.max_query_len}
        return self._attend(q, rows(k), rows(v), out, step, causal=causal, **own, **options)

    def _attend_over_shards(
        self,
        q: Tensor,
        own: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor],
        out: Tensor,
        step: StrobeMetadata,
        scales: dict[str, Tensor],
    ) -> None:
        """The keys before this step, of which each rank has a shard, and those of the step, which all have."""
        if isinstance(step.causal, Tensor):
            raise NotImplementedError("decode context parallelism is on with causal flags of requests")
        if step.context_lens is None:
            self._attend_in_place(q, *own, out, step, causal=step.causal)
            return
        new, new_lse = self._attend_in_place(q, *own, None, step, causal=step.causal, return_lse=True)
        queries = shards.of_all_heads(q, self.num_kv_heads)
        options: dict[str, Any] = (
            {"page_table": step.block_table, "seqused_k": step.context_lens} | scales | self._scores
        )
        packing: dict[str, Any] = {"cu_seqlens_q": step.query_start_loc, "max_seqlen_q": step.max_query_len}
        old, old_lse = strobe.attention(queries, cache[0], cache[1], return_lse=True, **packing, **options)
        parts = shards.of_own_heads(old, old_lse, self.num_kv_heads)
        strobe.merge([*parts, (new, new_lse)], out=out)

    def _attend_by_request(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        step: StrobeMetadata,
        options: dict[str, Any],
    ) -> None:
        """Requests with and without a causal mask, in a call each, in which the others have no queries.

        Their rows are zeros there, so that the sum of both outputs is the result. The flags stay on the device.
        """
        queries = step.query_start_loc.diff()
        with_mask = queries * step.causal
        self._attend(q, k, v, out, step, causal=True, seqused_q=with_mask, **options)
        rest = torch.empty_like(out)
        self._attend(q, k, v, rest, step, causal=False, seqused_q=queries - with_mask, **options)
        out.add_(rest)

    def _attend_shared(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, step: StrobeMetadata, *, causal: bool
    ) -> None:
        """Blocks that all requests share are read once."""
        strobe.shared_prefix_attention(
            rows(q),
            k,
            v,
            page_table=step.block_table,
            seqused_k=step.seq_lens,
            prefix_pages=step.shared_tokens // k.shape[1],
            cu_seqlens_q=step.query_start_loc,
            max_seqlen_q=step.max_query_len,
            causal=causal,
            out=out,
            **self._scores,
        )
