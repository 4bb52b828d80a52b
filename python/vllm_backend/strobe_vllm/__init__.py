# SPDX-License-Identifier: Apache-2.0
"""Strobe as attention backend of vLLM, which finds this package by its entry point and calls ``register``.

On a GPU it is chosen by ``--attention-backend CUSTOM``. On a CPU vLLM takes CPU_ATTN whatever is chosen, so the backend
takes its place, unless vLLM's variable VLLM_PLUGINS leaves the plug-in out.
"""

BACKEND = "strobe_vllm.backend.StrobeAttentionBackend"


def register() -> None:
    """Names the backend to vLLM; vLLM calls it in each of its processes, and may more than once."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
