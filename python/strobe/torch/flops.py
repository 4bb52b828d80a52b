# SPDX-License-Identifier: Apache-2.0
"""What torch.utils.flop_counter counts for the operators: the products alone, as `strobe bench` counts them.

2 * seqlen_q * seqlen_k * (head_dim + head_dim_v) for each head of q in the forward, 2.5 times that in the backward,
half of each where the call is causal. Windows, chunks, block masks and used lengths take nothing off.
"""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils.flop_counter import register_flop_formula

from strobe.torch.ops import TENSOR_NAMES, VALUE_NAMES


def _lengths(cu_seqlens: Tensor, rows: int, longest: int) -> list[int]:
    """Those of packed sequences; of tensors without elements the longest, or all rows, as often as there are some."""
    if isinstance(cu_seqlens, (FakeTensor, FunctionalTensor)) or cu_seqlens.is_meta:
        return [longest if longest >= 0 else rows] * (cu_seqlens.shape[0] - 1)
    return [int(length) for length in cu_seqlens.diff().tolist()]


def _pairs(q: Tensor, k: Tensor, options: dict[str, Any]) -> int:
    """Queries times keys, of all sequences."""
    ends = options["cu_seqlens_q"], options["cu_seqlens_k"]
    lengths = []
    for tensor, cu_seqlens, longest in zip((q, k), ends, ("max_seqlen_q", "max_seqlen_k"), strict=True):
        if cu_seqlens is None:
            lengths.append([tensor.shape[1]] * tensor.shape[0])
        else:
            lengths.append(_lengths(cu_seqlens, tensor.shape[0], options[longest]))
    return sum(rows * keys for rows, keys in zip(*lengths, strict=True))


def _products(q: Tensor, k: Tensor, v: Tensor, arguments: tuple[Any, ...]) -> int:
    """FLOPs of the forward's two."""
    names = TENSOR_NAMES + VALUE_NAMES
    options = dict(zip(names, arguments[: len(names)], strict=True))
    columns = q.shape[-1] + v.shape[-1]
    flops = 2 * _pairs(q, k, options) * q.shape[-2] * columns
    return flops if options["causal"] == "none" else flops // 2


@register_flop_formula(torch.ops.strobe.attention, get_raw=True)
def forward_flops(q: Tensor, k: Tensor, v: Tensor, *arguments: Any, out_val: Any = None) -> int:
    return _products(q, k, v, arguments)


@register_flop_formula(torch.ops.strobe.attention_backward, get_raw=True)
def backward_flops(
    d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *arguments: Any,
    out_val: Any = None,
) -> int:  # fmt: skip
    return _products(q, k, v, arguments) * 5 // 2
