# SPDX-License-Identifier: Apache-2.0
"""The attention of prompts in models of MLA: keys and values of each head, packed, without a cache.

vLLM makes keys and values of latents, those of a step's own tokens and those of their contexts, in chunks of bounded
memory, and merges the results by their LSE.
"""

from typing import Any, ClassVar, NamedTuple

import strobe
import torch
from strobe.torch.ops import rows
from torch import Tensor
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends.mla.prefill.base import MLADimensions, MLAPrefillBackend

from strobe_vllm import limits
from strobe_vllm.support import Support


class _Lengths(NamedTuple):
    """Where the rows of each request begin, int32 [num_reqs + 1], and the most that one has."""

    starts: Tensor
    longest: int


class StrobeMLAPrefill(MLAPrefillBackend):
    """Of any widths that Strobe's engines have; V's need not be padded to K's."""

    supported_dtypes: ClassVar[list[torch.dtype]] = Support.supported_dtypes

    @staticmethod
    def get_name() -> str:
        return Support.get_name()

    @classmethod
    def supports_compute_capability(cls, device_capability: DeviceCapability | None) -> bool:
        return device_capability is not None and Support.supports_compute_capability(device_capability)

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        return limits.mla_combination_reason(dtype, None, on_gpu=not current_platform.is_cpu()) is None

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions: MLADimensions) -> bool:
        widths = (mla_dimensions.qk_nope_head_dim + mla_dimensions.qk_rope_head_dim, mla_dimensions.v_head_dim)
        on_gpu = not current_platform.is_cpu()
        return all(limits.head_size_reason(width, on_gpu=on_gpu) is None for width in widths)

    def supports_out(self) -> bool:
        return True

    def run_prefill_new_tokens(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        return_softmax_lse: bool,
        out: Tensor | None = None,
        output_scale: Tensor | None = None,
    ) -> Any:
        """The attention of a step's tokens to each other: out [tokens, heads, head_dim_v], and with return_softmax_lse
        lse [heads, tokens]."""
        limits.reject_scaled_output(output_scale)
        step = self._prefill_metadata
        own = _Lengths(step.query_start_loc, step.max_query_len)
        return self._attend(q, k, v, own, own, causal=True, return_lse=return_softmax_lse, out=out)

    def run_prefill_context_chunk(
        self, chunk: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """out and lse of the attention to a part of the contexts, all of which lies before the queries."""
        queries = _Lengths(chunk.query_start_loc, chunk.max_query_len)
        context = _Lengths(chunk.cu_seq_lens, chunk.max_seq_len)
        return self._attend(q, k, v, queries, context, causal=False, return_lse=True, out=out)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, queries: _Lengths, keys: _Lengths, **options: Any) -> Any:
        return strobe.attention(
            rows(q),
            rows(k),
            rows(v),
            cu_seqlens_q=queries.starts,
            max_seqlen_q=queries.longest,
            cu_seqlens_k=keys.starts,
            max_seqlen_k=keys.longest,
            scale=self.scale,
            **options,
        )
