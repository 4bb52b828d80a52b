# SPDX-License-Identifier: Apache-2.0
"""What all backends of this package support, of MLA and of other attention."""

from typing import Any, ClassVar

import torch
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import MultipleOf

from strobe_vllm import limits


class Support:
    """To be inherited from before vLLM's class."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(limits.CACHE_DTYPES)

    @staticmethod
    def get_name() -> str:
        """The member of AttentionBackendEnum by which layers know their backend."""
        return "CUSTOM"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Any; on a GPU those that TMA reads in place."""
        return [MultipleOf(1 if current_platform.is_cpu() else 8)]

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        return capability >= DeviceCapability(8, 0)

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True
