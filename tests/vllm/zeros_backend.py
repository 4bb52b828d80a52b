# SPDX-License-Identifier: Apache-2.0
"""A broken backend: attention is zero. Tests show with it that a wrong attention changes tokens."""

from strobe_vllm.backend import StrobeAttentionBackend
from strobe_vllm.implementation import StrobeAttentionImpl


class Implementation(StrobeAttentionImpl):
    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, **scales):
        return output.zero_()


class Backend(StrobeAttentionBackend):
    @staticmethod
    def get_impl_cls():
        return Implementation
