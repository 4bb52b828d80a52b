# SPDX-License-Identifier: Apache-2.0
"""Multi-head Latent Attention: backends for the layers and for the prompts of vLLM's models that have it."""
