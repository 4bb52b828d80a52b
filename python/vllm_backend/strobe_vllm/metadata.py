# SPDX-License-Identifier: Apache-2.0
"""What a step's calls have in common. Nothing is read from a GPU, and nothing is computed but where spans end."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm import envs
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from strobe_vllm.limits import rswa_reason, shards_reason
from strobe_vllm.shards import shard_of
from strobe_vllm.spans import ends_of


@dataclass
class StrobeMetadata(AttentionMetadata):
    """A step: tensors of vLLM's own persistent buffers, which a captured graph reads again at each replay.

    query_start_loc is [num_reqs + 1], seq_lens [num_reqs], block_table [num_reqs, max_blocks], all int32; slot_mapping
    [tokens] int64; causal may be int32 [num_reqs], 1 where a request's queries see no later keys.
    """

    num_actual_tokens: int
    max_query_len: int
    """No request has more queries, also in a replay of a captured graph."""
    query_start_loc: Tensor
    max_seq_len: int
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool | Tensor = True
    shared_tokens: int = 0
    """How many keys in whole blocks all requests begin with, where they are to be read once."""
    has_context: bool = True
    """False: queries see no keys but this step's own, which need not be read out of blocks."""
    context_lens: Tensor | None = None
    """[num_reqs], where ranks share the keys: how many from before this step this rank has. None: there are none."""
    mm_prefix_range: Tensor | None = None
    """[tokens] int32, where tokens see each other in spans: `last` of spans.MASK. vLLM's models set the field of this
    name to None for layers without such spans."""


class StrobeMetadataBuilder(AttentionMetadataBuilder[StrobeMetadata]):
    """One for each group of layers. A graph captured of any batch serves every batch of as many tokens."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True
    supports_draft_decode_metadata_update: bool = True

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        mode = vllm_config.compilation_config.cudagraph_mode
        self.captures_mixed_batches = mode is not None and mode.mixed_mode() == CUDAGraphMode.FULL
        self._has_spans = _has_spans(vllm_config)
        self._shard = shard_of(kv_cache_spec, vllm_config)
        self._check_model(vllm_config)
        if self._shard.world > 1:
            requests = vllm_config.scheduler_config.max_num_seqs
            self._context_lens = torch.zeros(requests, dtype=torch.int32, device=device)
            self.supports_draft_decode_metadata_update = False  # which would advance lengths, and not these
        if self._has_spans:
            tokens = vllm_config.scheduler_config.max_num_batched_tokens
            self._last_keys = torch.zeros(tokens, dtype=torch.int32, device=device)
        # Each builder fills the buffers that its graphs read: none may stand in for another.
        self.supports_update_block_table = self._shard.world == 1 and not self._has_spans

    def _check_model(self, vllm_config: VllmConfig) -> None:
        """NotImplementedError where limits.py has a reason: vLLM's CPU platform does not ask the backend."""
        reason = rswa_reason(getattr(vllm_config.model_config, "rswa_window", None))
        if self._shard.world > 1:
            reason = reason or shards_reason({"spans of multimodal tokens": self._has_spans})
        if reason:
            raise NotImplementedError(reason)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> StrobeMetadata:
        """The step's metadata. common_prefix_len is what use_cascade_attention decided on, 0 since vLLM 0.32."""
        common = common_attn_metadata
        metadata = StrobeMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
            shared_tokens=common_prefix_len,
        )
        metadata.has_context = _has_context(common)
        if self._shard.world > 1 and metadata.has_context:
            metadata.context_lens = self._update_context_lens(common)
        if self._has_spans and common.causal is True and self._update_last_keys(common):
            metadata.mm_prefix_range = self._last_keys
        return metadata

    def _update_context_lens(self, common: CommonAttentionMetadata) -> Tensor:
        """In a buffer of their own, which a captured graph reads again."""
        lengths = common.seq_lens
        context_lens = self._context_lens[: len(lengths)]
        context_lens.copy_(self._shard.count((lengths - common.query_start_loc.diff()).clamp(min=0)))
        return context_lens

    def _update_last_keys(self, common: CommonAttentionMetadata) -> bool:
        """In a buffer of their own, which a captured graph reads again; whether layers are to read them.

        The host knows the lengths of prompts, and those of other requests from above: their queries are behind spans.
        Without spans in the step a causal mask says the same, perhaps with other bits.
        """
        ends = []
        if common.mm_req_doc_ranges:
            lengths = common.seq_lens_cpu_upper_bound.tolist()
            ends = ends_of(common.query_start_loc_cpu.tolist(), lengths, common.mm_req_doc_ranges)
        tokens = common.num_actual_tokens
        last = torch.zeros(tokens, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        for first, end, position in ends:
            last[first:end] = position
        self._last_keys[:tokens].copy_(last, non_blocking=True)
        return bool(ends) or bool(envs.VLLM_BATCH_INVARIANT)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> StrobeMetadata:
        """Graphs of mixed batches are captured with short queries and replayed with any: one request may have all."""
        metadata = self.build(0, common_attn_metadata)
        metadata.has_context = True  # of other batches
        if self._shard.world > 1:
            metadata.context_lens = self._update_context_lens(common_attn_metadata)
        if self.captures_mixed_batches:
            metadata.max_query_len = metadata.num_actual_tokens
        if self._has_spans and metadata.causal is True and metadata.max_query_len > 1:
            metadata.mm_prefix_range = self._last_keys
        return metadata

    def update_block_table(self, metadata: StrobeMetadata, blk_table: Tensor, slot_mapping: Tensor) -> StrobeMetadata:
        """The same step over the blocks of another group of layers."""
        return replace(metadata, block_table=blk_table, slot_mapping=slot_mapping)

    def update_draft_decode_metadata(self, metadata: StrobeMetadata) -> None:
        """The tensors are vLLM's own, which it has advanced: the step before is context now."""
        metadata.has_context = True

    def use_cascade_attention(
        self,
        common_prefix_len: int,
        query_lens: Any,
        num_query_heads: int,
        num_kv_heads: int,
        use_alibi: bool,
        use_sliding_window: bool,
        use_local_attention: bool,
        num_sms: int,
        dcp_world_size: int,
    ) -> bool:
        """Whether the blocks that all requests share are worth a call of their own; asked by vLLM before 0.32.

        Eight sequences with 8,192 shared keys take 0.75 of a plain call's time on an H200 (docs/serving.md); less work
        was not measured. Positions are lost in that call, which spans need, too.
        """
        is_enough = len(query_lens) >= 8 and common_prefix_len >= 8192
        by_position = use_alibi or use_sliding_window or use_local_attention or self._has_spans
        return is_enough and not by_position and dcp_world_size == 1 and not self._layers_need_one_call()

    def _layers_need_one_call(self) -> bool:
        layers = self.vllm_config.compilation_config.static_forward_context
        return any(layers[name].impl.needs_one_call for name in self.layer_names)


def _has_spans(vllm_config: VllmConfig) -> bool:
    """Whether tokens of images or the like may see each other in the model's layers."""
    model = vllm_config.model_config
    return model is not None and bool(model.is_mm_prefix_lm)


def _has_context(common: CommonAttentionMetadata) -> bool:
    """Whether a request may have keys from before this step: the same on all ranks, which send messages then."""
    lengths = common.seq_lens_cpu_upper_bound
    if lengths is None:
        return True
    return bool((lengths[: common.num_reqs] > common.query_start_loc_cpu.diff()[: common.num_reqs]).any())
