# SPDX-License-Identifier: Apache-2.0
"""Which calls with qv GPUs take."""

from strobe._options import Tensor
from strobe._shapes import dtype_name, shape_of

HEAD_DIM_MULTIPLE = 8  # of what the gpu engine takes
MOST_HEAD_DIM = 576
_JOINED_COLUMNS = 64  # of v, of whose rows and k's it makes longer ones: multiples


def gpus_take_query_values(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the gpu engine has the forward with qv: of 16 bits, of these columns."""
    head_dim, head_dim_v = shape_of(q)[-1], shape_of(v)[-1]
    has_widths = head_dim % HEAD_DIM_MULTIPLE == 0 and head_dim_v % _JOINED_COLUMNS == 0
    is_half = dtype_name(q.dtype) in ("float16", "bfloat16") and k.dtype == q.dtype
    return is_half and has_widths and 0 < head_dim_v <= MOST_HEAD_DIM - head_dim
