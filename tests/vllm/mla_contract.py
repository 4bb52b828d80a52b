# SPDX-License-Identifier: Apache-2.0
"""What the backend of MLA takes of vLLM, beside contract.py: steps of decodes. Prompts need vLLM itself.

test_contract.py compares it with the installed vLLM.
"""

import enum
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import contract
import torch

D = TypeVar("D")
M = TypeVar("M")


class QueryLenSupport(enum.Enum):
    VARLEN = "varlen"


@dataclass
class MLACommonDecodeMetadata:
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    dcp_tot_seq_lens: torch.Tensor | None


@dataclass
class MLACommonMetadata(contract.AttentionMetadata, Generic[D]):
    num_reqs: int
    max_query_len: int
    max_seq_len: int
    num_actual_tokens: int
    query_start_loc: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    causal: bool = True
    decode: D | None = None


class MLACommonImpl(contract.AttentionImpl[M], Generic[M]):
    def __init__(self, num_heads: int, head_size: int, scale: float, *_rest: Any, **dimensions: Any) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.kv_lora_rank = dimensions["kv_lora_rank"]
        self.qk_rope_head_dim = dimensions["qk_rope_head_dim"]


def max_decode_query_len(vllm_config: Any) -> int:
    drafts = vllm_config.speculative_config
    return 1 if drafts is None else 1 + drafts.num_speculative_tokens


class MLACommonMetadataBuilder(contract.AttentionMetadataBuilder[M]):
    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
        metadata_cls: Any = None,
        supports_dcp_with_varlen: bool = False,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.metadata_cls = metadata_cls
        self.reorder_batch_threshold = max_decode_query_len(vllm_config)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        common = common_attn_metadata
        assert common.max_query_len <= self.reorder_batch_threshold, "prompts need vLLM"
        return self.metadata_cls(
            num_reqs=common.num_reqs,
            max_query_len=common.max_query_len,
            max_seq_len=common.max_seq_len,
            num_actual_tokens=common.num_actual_tokens,
            query_start_loc=common.query_start_loc,
            slot_mapping=common.slot_mapping,
            num_decodes=common.num_reqs,
            num_decode_tokens=common.num_actual_tokens,
            num_prefills=0,
            causal=common.causal,
            decode=self._build_decode(
                block_table_tensor=common.block_table_tensor,
                seq_lens_device=common.seq_lens,
                max_seq_len=common.max_seq_len,
                query_start_loc_cpu=common.query_start_loc_cpu,
                query_start_loc_device=common.query_start_loc,
                num_decode_tokens=common.num_actual_tokens,
                max_query_len=common.max_query_len,
                dcp_tot_seq_lens_device=None,
            ),
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        return self.build(0, common_attn_metadata)


@dataclass(frozen=True, kw_only=True)
class MLADimensions:
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


class MLAPrefillBackend:
    def __init__(
        self,
        num_heads: int,
        scale: float,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        vllm_config: Any,
    ) -> None:
        self.scale = scale

    def prepare_metadata(self, prefill_metadata: Any) -> None:
        self._prefill_metadata = prefill_metadata


_CONFIGS: list[Any] = []


@contextmanager
def set_current_vllm_config(config: Any) -> Any:
    _CONFIGS.append(config)
    yield
    _CONFIGS.pop()


def get_current_vllm_config() -> Any:
    return _CONFIGS[-1]


class DeviceCapability(tuple):
    pass


def install() -> None:
    """Modules of vLLM's names with what stands here; after contract.install."""
    attention = "vllm.model_executor.layers.attention.mla_attention"
    prefill = "vllm.v1.attention.backends.mla.prefill.base"
    made = {
        attention: (
            MLACommonDecodeMetadata,
            MLACommonImpl,
            MLACommonMetadata,
            MLACommonMetadataBuilder,
            QueryLenSupport,
        ),
        prefill: (MLADimensions, MLAPrefillBackend),
        "vllm.platforms.interface": (DeviceCapability,),
        "vllm.platforms": (),
    }
    for name, values in made.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:count]), ModuleType(".".join(parts[:count])))
        for value in values:
            setattr(sys.modules[name], value.__name__, value)
    sys.modules["vllm.platforms"].current_platform = SimpleNamespace(is_cpu=lambda: not torch.cuda.is_available())
    sys.modules["vllm.v1.attention.backend"].max_decode_query_len = max_decode_query_len
    sys.modules["vllm.config"].set_current_vllm_config = set_current_vllm_config
    sys.modules["vllm.config"].get_current_vllm_config = get_current_vllm_config
