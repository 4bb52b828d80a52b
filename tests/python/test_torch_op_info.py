# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples of scaled_dot_product_attention under sdpa(), and the same with axes that repeat elements."""

import contextlib

import pytest
import strobe
import strobe.torch
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.testing._internal.common_methods_invocations import op_db

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SEED = 5


def samples(dtype):
    """(tensors, arguments): q, k, v and, where there is one, a floating-point mask."""
    (operator,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=True):
        arguments = dict(sample.kwargs)
        mask = arguments.pop("attn_mask", None)
        yield [x.detach() for x in (sample.input, *sample.args, *([] if mask is None else [mask]))], arguments


def with_repeated_axes(tensors):
    """The tensors; and with each axis but head_dim of each in turn of extent 1, expanded and, if it leads, as it is."""
    yield tensors
    for index, tensor in enumerate(tensors):
        for axis in range(tensor.dim() if index == 3 else tensor.dim() - 1):
            first = tensor.narrow(axis, 0, 1)
            yield [*tensors[:index], first.expand_as(tensor), *tensors[index + 1 :]]
            if index == 3 or axis < tensor.dim() - 2:
                yield [*tensors[:index], first, *tensors[index + 1 :]]


def weights(out):
    """The gradient that comes in: numbers that every dtype holds."""
    return (torch.arange(out.numel()).view(out.shape).sin() * 64).round().div(64).to(out.dtype)


def with_gradients(function, tensors, dtype, arguments):
    leaves = [x.to(dtype).clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors]
    out = function(*leaves, **arguments)
    return [out.detach(), *torch.autograd.grad((out * weights(out.detach())).sum(), leaves)]


def probabilities(q, k, v, mask=None, *, is_causal, dropout_p):
    """softmax, and by what dropout multiplies it with SEED: 0 or 1 / (1 - dropout_p)."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.expand(*torch.broadcast_shapes(scores.shape[:-2], v.shape[:-2]), *scores.shape[-2:])
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    if mask is not None:
        scores = scores + mask
    torch.manual_seed(SEED)
    seed, offset = torch.randint(2**63 - 1, (2,), dtype=torch.int64).tolist()
    shape = scores.shape if scores.dim() == 4 else (1, *scores.shape)  # a single leading axis counts as heads
    kept = torch.from_numpy(strobe.dropout_mask(tuple(shape), dropout_p, seed=seed, offset=offset))
    return scores.softmax(-1), kept.view(scores.shape).to(q.dtype) / (1 - dropout_p)


def pytorch(q, k, v, mask=None, **arguments):
    """Its function; with dropout, whose mask is another there, the equation."""
    if arguments["dropout_p"]:
        p, factor = probabilities(q, k, v, mask, **arguments)
        return (p * factor) @ v
    with sdpa_kernel(SDPBackend.MATH) if q.dtype == torch.float64 else contextlib.nullcontext():
        return scaled_dot_product_attention(q, k, v, mask, **arguments)


def by_strobe(*tensors, **arguments):
    torch.manual_seed(SEED)
    with strobe.torch.sdpa():
        return scaled_dot_product_attention(*tensors, **arguments)


def roundings(tensors, out, arguments, dtype):
    """What rounding to `dtype` may do to the largest element of o and of each gradient, if no terms cancelled.

    A score and a row's LSE are float32: a rounding of theirs is relative to the score, and as much of P.
    """
    p, factor = probabilities(*tensors, **arguments)
    q, k, v = (x.abs() for x in tensors[:3])
    d_o, scale = weights(out).abs(), q.shape[-1] ** -0.5
    relative = torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * (scale * q @ k.transpose(-1, -2)).max()
    d_p = d_o @ v.transpose(-1, -2) * factor
    d_s = p * (d_p + (p * d_p).sum(-1, keepdim=True))
    p = p * factor
    terms = p @ v, scale * d_s @ k, scale * d_s.transpose(-1, -2) @ q, p.transpose(-1, -2) @ d_o, d_s
    return [relative * term.sum_to_size(x.shape).max() for term, x in zip(terms, [out, *tensors], strict=False)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_sample(dtype):
    """max|result - exact| <= max|PyTorch in the inputs' dtype - exact| + a rounding."""
    compared = 0
    for base, arguments in samples(dtype):
        for tensors in with_repeated_axes(base):
            compared += 1
            exact = with_gradients(pytorch, tensors, torch.float64, arguments)
            theirs = with_gradients(pytorch, tensors, dtype, arguments)
            ours = with_gradients(by_strobe, tensors, dtype, arguments)
            allowed = roundings([x.double() for x in tensors], exact[0], arguments, dtype)
            for wanted, usual, result, rounding in zip(exact, theirs, ours, allowed, strict=True):
                assert result.dtype == dtype and result.shape == wanted.shape
                error, bound = ((x.double() - wanted).abs().max() for x in (result, usual))
                assert error <= bound + rounding, ([x.shape for x in tensors], arguments)
    assert compared >= 300
