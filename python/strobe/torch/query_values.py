# SPDX-License-Identifier: Apache-2.0
"""Calls whose scores are products of two pairs, q k^T + qv v^T, on PyTorch's tape."""

from typing import Any

import torch
from torch import Tensor

from strobe import _core
from strobe._forward import forward
from strobe._shapes import lse_shape, output_shape
from strobe.torch import ops
from strobe.torch.checks import check_layouts


def attend(q: Tensor, k: Tensor, v: Tensor, qv: Tensor, options: dict[str, Any], *, return_lse: bool) -> Any:
    """out, or out and lse. ``options`` are none that have a gradient."""
    try:
        qv = ops.rows(qv)
    except (IndexError, RuntimeError):
        check_layouts(qv=qv)
        raise
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, qv)):
        return _QueryValues.apply(options, return_lse, q, k, v, qv)
    return forward(q, k, v, None, return_lse, False, options | {"qv": qv})


class _QueryValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], returns_lse: bool, *tensors: Tensor) -> Any:
        q, k, v, qv = tensors
        o = q.new_empty(output_shape(q, v))
        lse = torch.empty(lse_shape(q), dtype=torch.float32, device=q.device)
        _core.forward(q, k, v, o, lse, None, qv=qv, **options)
        names = [name for name, value in options.items() if isinstance(value, Tensor)]
        ctx.save_for_backward(q, k, v, qv, o, lse, *(options[name] for name in names))
        ctx.options = {name: value for name, value in options.items() if name not in names}
        ctx.names, ctx.returns_lse = names, returns_lse
        ctx.set_materialize_grads(False)
        return (o, lse) if returns_lse else o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None = None) -> Any:
        q, k, v, qv, o, lse, *tensors = ctx.saved_tensors
        options = ctx.options | dict(zip(ctx.names, tensors, strict=True))
        d_o = torch.zeros_like(o) if d_o is None else ops.rows(d_o.resolve_neg())
        d_lse = None if d_lse is None else ops.rows(d_lse)
        dq, dk, dv, dqv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, qv))
        _core.backward(d_o, q, k, v, o, lse, d_lse, dq, dk, dv, None, None, None, None, dqv, qv=qv, **options)
        return None, None, dq, dk, dv, dqv
