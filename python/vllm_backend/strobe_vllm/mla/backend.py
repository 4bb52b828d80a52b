# SPDX-License-Identifier: Apache-2.0
"""What vLLM asks of the backend of MLA before it builds layers: classes, and what is supported."""

import torch
from vllm.model_executor.layers.attention.mla_attention import MLACommonBackend
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability

from strobe_vllm import limits
from strobe_vllm.mla.implementation import StrobeMLAImpl
from strobe_vllm.mla.metadata import StrobeMLAMetadataBuilder
from strobe_vllm.support import Support


class StrobeMLABackend(Support, MLACommonBackend):
    """Exact latent attention on CPUs and, from compute capability 8.0 on, on GPUs."""

    @staticmethod
    def get_impl_cls() -> type[StrobeMLAImpl]:
        return StrobeMLAImpl

    @staticmethod
    def get_builder_cls() -> type[StrobeMLAMetadataBuilder]:
        return StrobeMLAMetadataBuilder

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
        on_gpu = not current_platform.is_cpu()
        reason = limits.mla_combination_reason(dtype, kv_cache_dtype, on_gpu=on_gpu)
        return reason or (limits.mla_float8_reason(kv_cache_dtype, head_size, device_capability) if on_gpu else None)
