# SPDX-License-Identifier: Apache-2.0
"""Keys of a sparse call."""

from dataclasses import dataclass

from strobe._options import Tensor
from strobe._row_format import RowFormat
from strobe._shapes import shape_of


@dataclass(slots=True)
class SparseSource:
    """Keys and values, and which of them each query reads: ``extra`` of ``sparse_attention``, which describes them."""

    k: Tensor
    v: Tensor | None = None
    indices: Tensor | None = None
    k_format: RowFormat | None = None
    v_format: RowFormat | None = None
    topk_length: Tensor | None = None
    block_size: int = 1
    cu_seqlens_k: Tensor | None = None
    page_table: Tensor | None = None
    seqused_k: Tensor | None = None
    in_pool: bool = False
    causal: bool = False


def value_columns(source: SparseSource, head_dim_v: int | None) -> int:
    """Columns of V."""
    if head_dim_v is not None:
        return head_dim_v
    if source.v is not None:
        return source.v_format.columns if source.v_format is not None else shape_of(source.v)[-1]
    if source.k_format is not None:
        return source.k_format.head_dim_v
    return shape_of(source.k)[-1]
