# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives: an operator that computes tangents of o and lse in the pass that computes these.

torch.func.jvp, jacfwd and linearize and the dual numbers of torch.autograd.forward_ad come here by autograd.py. The
output stays differentiable in reverse; its tangent does not.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from strobe import _core
from strobe._option_list import CAPTURE_NAMES
from strobe.torch import ops
from strobe.torch.ops import LIBRARY, TENSOR_NAMES

TANGENT_NAMES = ("q_tangent", "k_tangent", "v_tangent")

LIBRARY.define(
    f"attention_jvp(Tensor q, Tensor k, Tensor v, {ops.SCHEMA}, "
    f"{', '.join(f'Tensor? {name}' for name in TANGENT_NAMES)}) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """o and lse, and their tangents."""
    o, lse, _ = ops.empty_outputs(q, v, None, max_logits=False)
    return o, lse, torch.empty_like(o), torch.empty_like(lse)


def _compute(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    options, tangents = arguments[: -len(TANGENT_NAMES)], arguments[-len(TANGENT_NAMES) :]
    outputs = _outputs(q, v)
    # PyTorch gives tangents of products with Python's numbers as float64.
    rows = (None if x is None else ops.rows(x.to(q.dtype)) for x in tangents)
    _core.jvp(q, k, v, *rows, *outputs, **ops.keywords(options))
    return outputs


def _fake(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return _outputs(q, v)


def dual_outputs(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """What torch.ops.strobe.attention gives of these arguments, some of which have tangents: o and lse with theirs."""
    *options, return_max_logits = arguments
    for name, x in zip(TENSOR_NAMES, options, strict=False):
        if isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None:
            name = "a capture" if name in CAPTURE_NAMES else name
            raise NotImplementedError(
                f"{name} has a tangent: forward-mode derivatives are those of q, k and v, detach it"
            )
    if return_max_logits:
        raise NotImplementedError("max_logits has no tangent: take forward-mode derivatives without return_max_logits")
    duals = [forward_ad.unpack_dual(x) for x in (q, k, v)]
    o, lse, o_tangent, lse_tangent = torch.ops.strobe.attention_jvp(
        *(dual.primal for dual in duals), *options, *(dual.tangent for dual in duals)
    )
    return forward_ad.make_dual(o, o_tangent), forward_ad.make_dual(lse, lse_tangent), q.new_empty((0,))


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("attention_jvp", _compute, _device)
torch.library.register_fake("strobe::attention_jvp", _fake, lib=LIBRARY)
