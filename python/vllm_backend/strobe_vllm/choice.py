# SPDX-License-Identifier: Apache-2.0
"""The backend that vLLM's name CUSTOM stands for, which may be registered for one class alone.

vLLM asks a class whether it is for MLA, and gives each model's layers the class of that name. ``Backend`` is looked up
whenever vLLM chooses one for a model, and is the class for the layers of that model.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "Backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is not None and config.model_config is not None and config.model_config.use_mla:
        from strobe_vllm.mla.backend import StrobeMLABackend

        return StrobeMLABackend
    from strobe_vllm.backend import StrobeAttentionBackend

    return StrobeAttentionBackend
