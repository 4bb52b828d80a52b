# SPDX-License-Identifier: Apache-2.0
"""Multi-head Latent Attention: backends for the layers and for the prompts of vLLM's models that have it."""

from vllm.v1.attention import backend

if not hasattr(backend, "max_decode_query_len"):
    raise ImportError("models with MLA need vLLM 0.31 or later with strobe-vllm")
