# SPDX-License-Identifier: Apache-2.0
"""Attention under the transforms of torch.func: grad, vjp, jacrev, vmap and what they are combined to.

The operators' own nodes on the tape save in the forward, which transforms do not allow. batching.py has what vmap does.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import Function

from strobe.torch import ops


def is_transformed() -> bool:
    """Whether a transform runs now, in no compiler: compilers know vmap of the operators.

    They do not know derivatives of the operators under transforms: there the graph breaks.
    """
    if not _are_functorch_transforms_active():
        return False
    if not torch.compiler.is_compiling():
        return True
    if retrieve_current_functorch_interpreter().key() == TransformType.Grad:
        torch._dynamo.graph_break("torch.func takes a derivative of strobe.torch.attention")
    return False


def _no_forward_mode(ctx: Any, *tangents: Tensor | None) -> Any:
    raise NotImplementedError(ops.NO_FORWARD_MODE)


class Attention(Function):
    """torch.ops.strobe.attention."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.strobe.attention(*arguments)

    setup_context = staticmethod(ops.setup_context)
    jvp = staticmethod(_no_forward_mode)

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None, d_max_logits: Tensor | None) -> Any:
        return ops.gradients(ctx, AttentionBackward.apply, d_o, d_lse, d_max_logits)


class AttentionBackward(Function):
    """torch.ops.strobe.attention_backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.strobe.attention_backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    backward = staticmethod(ops.no_second_derivative)
    jvp = staticmethod(_no_forward_mode)
