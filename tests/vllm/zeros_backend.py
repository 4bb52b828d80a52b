# SPDX-License-Identifier: Apache-2.0
"""A broken backend: attention is zero. Tests show with it that a wrong attention changes tokens."""

from strobe_vllm.backend import StrobeAttentionBackend
from strobe_vllm.implementation import StrobeAttentionImpl
from strobe_vllm.mla.backend import StrobeMLABackend
from strobe_vllm.mla.implementation import StrobeMLAImpl


class Implementation(StrobeAttentionImpl):
    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, **scales):
        return output.zero_()


class Backend(StrobeAttentionBackend):
    @staticmethod
    def get_impl_cls():
        return Implementation


class MLAImplementation(StrobeMLAImpl):
    def forward_mha(self, q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale, output, output_scale=None):
        output.zero_()

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        return q[0].new_zeros(q[0].shape), None


class MLABackend(StrobeMLABackend):
    @staticmethod
    def get_impl_cls():
        return MLAImplementation
