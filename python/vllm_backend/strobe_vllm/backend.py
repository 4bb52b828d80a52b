# SPDX-License-Identifier: Apache-2.0
"""What vLLM asks of a backend before it builds layers: classes, and what is supported."""

import torch
from vllm import envs
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionBackend, AttentionType

from strobe_vllm import limits
from strobe_vllm.implementation import StrobeAttentionImpl
from strobe_vllm.metadata import StrobeMetadataBuilder
from strobe_vllm.support import Support


class StrobeAttentionBackend(Support, AttentionBackend):
    """Exact attention on CPUs and, from compute capability 8.0 on, on GPUs."""

    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_impl_cls() -> type[StrobeAttentionImpl]:
        return StrobeAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[StrobeMetadataBuilder]:
        return StrobeMetadataBuilder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return limits.head_size_reason(head_size, on_gpu=not current_platform.is_cpu()) is None

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in tuple(AttentionType)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: DeviceCapability,
    ) -> str | None:
        """The reason where each is supported alone and all together are not."""
        return limits.combination_reason(
            head_size,
            dtype,
            kv_cache_dtype,
            on_gpu=not current_platform.is_cpu(),
            row_invariant=bool(envs.VLLM_BATCH_INVARIANT),
            capability=device_capability,
        )
