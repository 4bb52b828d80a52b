# SPDX-License-Identifier: Apache-2.0
"""What the backend takes of vLLM, for machines that have PyTorch and not vLLM: `install` puts it where imports find it.

test_contract.py compares it with the installed vLLM.
"""

import enum
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch

M = TypeVar("M")


class AttentionType(enum.StrEnum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


class AttentionCGSupport(enum.Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2


class CUDAGraphMode(enum.Enum):
    NONE = 0
    FULL = 2
    FULL_AND_PIECEWISE = (2, 1)

    def mixed_mode(self) -> "CUDAGraphMode":
        return CUDAGraphMode.FULL if self is CUDAGraphMode.FULL else CUDAGraphMode.NONE


@dataclass(frozen=True)
class MultipleOf:
    base: int


class AttentionBackend:
    pass


class AttentionMetadata:
    pass


class AttentionLayer:
    pass


class AttentionImpl(Generic[M]):
    can_return_lse_for_decode = False

    def __new__(cls, *_args: Any, **_options: Any) -> "AttentionImpl[M]":
        """Every implementation knows its place among the ranks that share keys."""
        self = super().__new__(cls)
        group = sys.modules["vllm.distributed.parallel_state"]._DCP
        self.dcp_world_size, self.dcp_rank = (1, 0) if group is None else (group.world_size, group.rank_in_group)
        self.need_to_return_lse_for_decode = self.dcp_world_size > 1 and self.can_return_lse_for_decode
        return self


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool | torch.Tensor = True
    seq_lens_cpu_upper_bound: torch.Tensor | None = None
    mm_req_doc_ranges: dict[int, list[tuple[int, int]]] | None = None


class AttentionMetadataBuilder(Generic[M]):
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device


class _Variables(ModuleType):
    @property
    def VLLM_BATCH_INVARIANT(self) -> bool:  # noqa: N802 - vLLM's name
        return bool(int(os.getenv("VLLM_BATCH_INVARIANT", "0")))


def get_dcp_group() -> Any:
    """The group of ranks that share keys; vLLM's tests set _DCP, as this project's do."""
    group = sys.modules["vllm.distributed.parallel_state"]._DCP
    assert group is not None, "decode context parallel group is not initialized"
    return group


def install() -> None:
    """Modules of vLLM's names with what stands here."""
    envs = _Variables("vllm.envs")
    backend = ModuleType("vllm.v1.attention.backend")
    for value in (
        *(AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionLayer, AttentionMetadata),
        *(AttentionMetadataBuilder, AttentionType, CommonAttentionMetadata, MultipleOf),
    ):
        setattr(backend, value.__name__, value)
    config = ModuleType("vllm.config")
    config.CUDAGraphMode, config.VllmConfig = CUDAGraphMode, object
    interface = ModuleType("vllm.v1.kv_cache_interface")
    interface.AttentionSpec = object
    state = ModuleType("vllm.distributed.parallel_state")
    state._DCP, state.get_dcp_group = None, get_dcp_group
    packages = [ModuleType(name) for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.distributed")]
    packages[0].envs = envs
    sys.modules |= {module.__name__: module for module in (*packages, envs, backend, config, interface, state)}
