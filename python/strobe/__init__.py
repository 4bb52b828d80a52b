# SPDX-License-Identifier: Apache-2.0
"""Exact attention, forward and backward, without the N x N matrix.

``attention`` works on NumPy arrays and on tensors of any framework, without automatic differentiation; ``strobe.torch``
and ``strobe.jax`` add gradients and compilers, ``strobe.integrations`` model libraries. Unsupported calls raise
NotImplementedError.
"""

from strobe._append import append
from strobe._attention import attention, attention_backward, explain, info
from strobe._core import version as __version__
from strobe._expressions import ScoreFunction
from strobe._masks import butterfly_block_mask, dropout_mask, local_block_mask, strided_block_mask
from strobe._merge import merge, merge_backward
from strobe._mla import mla
from strobe._options import AppendOptions, EightBitOptions, Options, QuantizeOptions, ScoreOptions
from strobe._quantize import QuantizationPlan, plan_quantization, quantize
from strobe._quantized import Quantized
from strobe._row_format import RowFormat, RowPart
from strobe._shared_prefix import shared_prefix_attention
from strobe._sparse import explain_sparse_attention, sparse_attention
from strobe._sparse_source import SparseSource
from strobe._threads import get_threads, set_threads

__all__ = [
    "AppendOptions",
    "EightBitOptions",
    "Options",
    "QuantizationPlan",
    "QuantizeOptions",
    "Quantized",
    "RowFormat",
    "RowPart",
    "ScoreFunction",
    "ScoreOptions",
    "SparseSource",
    "__version__",
    "append",
    "attention",
    "attention_backward",
    "butterfly_block_mask",
    "dropout_mask",
    "explain",
    "explain_sparse_attention",
    "get_threads",
    "info",
    "local_block_mask",
    "merge",
    "merge_backward",
    "mla",
    "plan_quantization",
    "quantize",
    "set_threads",
    "shared_prefix_attention",
    "sparse_attention",
    "strided_block_mask",
]
