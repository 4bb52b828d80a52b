# SPDX-License-Identifier: Apache-2.0
"""Strobe as attention backend of vLLM, which finds this package by its entry point and calls ``register``.

On a GPU it is chosen by ``--attention-backend CUSTOM``, and for the prompts of MLA models by ``mla_prefill_backend``
of ``--attention-config``. On a CPU vLLM takes backends of its own whatever is chosen, so Strobe's take their places,
unless vLLM's variable VLLM_PLUGINS leaves the plug-in out.
"""

CHOSEN = "strobe_vllm.choice.Backend"
BACKEND = "strobe_vllm.backend.StrobeAttentionBackend"
MLA_BACKEND = "strobe_vllm.mla.backend.StrobeMLABackend"
MLA_PREFILL = "strobe_vllm.mla.prefill.StrobeMLAPrefill"


def register() -> None:
    """Names the backends to vLLM; vLLM calls it in each of its processes, and may more than once."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, CHOSEN)
    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
    _register_mla()


def _register_mla() -> None:
    """Nothing where vLLM is older than 0.31, whose builders are given less: its own backends stay."""
    from vllm.v1.attention import backend
    from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum, register_mla_prefill_backend
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if not hasattr(backend, "max_decode_query_len"):
        return
    for name in ("CPU_MLA", "AMX_MLA"):
        register_backend(AttentionBackendEnum[name], MLA_BACKEND)
    for name in ("CUSTOM", "CPU", "ZEN_CPU"):
        register_mla_prefill_backend(MLAPrefillBackendEnum[name], MLA_PREFILL)
