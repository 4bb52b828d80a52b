# SPDX-License-Identifier: Apache-2.0
"""Attention under the transforms of torch.func: grad, vjp, jacrev, vmap and what they are combined to.

The operators' own nodes on the tape save in the forward, which transforms do not allow. vmap loops over its axis.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import Function

from strobe.torch import ops


def is_transformed() -> bool:
    """Whether a transform runs now, and no compiler, which has rules of its own for the operators."""
    return _functorch.peek_interpreter_stack() is not None and not torch.compiler.is_compiling()


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
