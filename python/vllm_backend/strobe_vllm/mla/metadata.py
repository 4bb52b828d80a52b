# SPDX-License-Identifier: Apache-2.0
"""What a step's decodes have in common. vLLM splits steps into decodes and prompts, and has the metadata of prompts."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from strobe.torch import Shard
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonDecodeMetadata,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport, max_decode_query_len
from vllm.v1.kv_cache_interface import AttentionSpec

from strobe_vllm.limits import MOST_QUERIES_OVER_SHARDS
from strobe_vllm.shards import shard_of


@dataclass
class StrobeMLADecodeMetadata(MLACommonDecodeMetadata):
    """Tensors of vLLM's own persistent buffers, which a captured graph reads again at each replay.

    block_table is [num_decodes, max_blocks], seq_lens and dcp_tot_seq_lens [num_decodes], query_start_loc
    [num_decodes + 1], all int32. Where ranks share keys, seq_lens counts this rank's and dcp_tot_seq_lens all.
    """

    query_start_loc: Tensor
    max_query_len: int
    """No request has more queries, also in a replay of a captured graph."""
    shard: Shard


class StrobeMLAMetadata(MLACommonMetadata[StrobeMLADecodeMetadata]):
    pass


class StrobeMLAMetadataBuilder(MLACommonMetadataBuilder[StrobeMLAMetadata]):
    """One for each group of layers. A graph captured of decodes serves all decodes of as many tokens.

    Graphs hold no prompts: vLLM cuts their contexts on the host.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.VARLEN
    supports_non_causal_multi_token_decode: ClassVar[bool] = True

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(
            kv_cache_spec,
            layer_names,
            vllm_config,
            device,
            StrobeMLAMetadata,
            supports_dcp_with_varlen=max_decode_query_len(vllm_config) <= MOST_QUERIES_OVER_SHARDS,
        )
        self._shard = shard_of(kv_cache_spec, vllm_config)
        # Drafts would advance the whole lengths, and not those of the shards.
        self.supports_draft_decode_metadata_update = self._shard.world == 1

    @classmethod
    def get_varlen_cudagraph_max_query_len(cls, vllm_config: VllmConfig, kv_cache_spec: AttentionSpec) -> int | None:
        """Requests with more queries are prompts."""
        return max_decode_query_len(vllm_config)

    def _build_decode(
        self,
        block_table_tensor: Tensor,
        seq_lens_device: Tensor,
        max_seq_len: int,
        query_start_loc_cpu: Tensor,
        query_start_loc_device: Tensor,
        num_decode_tokens: int,
        max_query_len: int,
        dcp_tot_seq_lens_device: Tensor | None,
    ) -> StrobeMLADecodeMetadata:
        return StrobeMLADecodeMetadata(
            block_table=block_table_tensor,
            seq_lens=seq_lens_device,
            dcp_tot_seq_lens=dcp_tot_seq_lens_device,
            query_start_loc=query_start_loc_device,
            max_query_len=max(max_query_len, 1),  # 0 in captures of padding alone
            shard=self._shard,
        )

    def update_draft_decode_metadata(self, metadata: Any) -> None:
        """The tensors are vLLM's own, which it has advanced."""
