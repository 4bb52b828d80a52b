# SPDX-License-Identifier: Apache-2.0
"""torch.func over attention: the values of PyTorch's math in float64, or one clear error."""

import pytest
import strobe.torch
import torch
from torch.func import grad, hessian, jacrev, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

TENSORS = [torch.randn(3, 5, 2, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
BIAS = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(3))


def attend(q, k, v, bias=None):
    return strobe.torch.attention(q, k, v, bias=bias)


def attend_by_sdpa(q, k, v, bias=None):
    with strobe.torch.sdpa():
        return by_pytorch(q, k, v, bias)


def by_pytorch(q, k, v, bias=None):
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(-2, -3)


def transforms(attention):
    """Each of torch.func's, of a call with a batch axis and of one sample's, where vmap takes the batch."""

    def loss(q, k, v, bias):
        return attention(q, k, v, bias).sin().sum()

    def sample(q, k, v, bias):
        return attention(q[None], k[None], v[None], bias)[0]

    def sample_loss(q, k, v, bias):
        return sample(q, k, v, bias).sin().sum()

    own = (0, 0, 0, None)
    return {
        "grad": grad(loss, argnums=(0, 1, 2, 3)),
        "vjp": lambda *inputs: vjp(attention, *inputs)[1](torch.ones_like(inputs[0])),
        "vmap": vmap(sample, in_dims=own),
        "vmap of K alone": vmap(lambda k, q, v, bias: attention(q, k[None].expand_as(v), v, bias), (0, *[None] * 3)),
        "vmap grad": vmap(grad(sample_loss, argnums=(0, 1, 2, 3)), in_dims=own),
        "grad vmap": grad(lambda *inputs: vmap(sample, in_dims=own)(*inputs).sin().sum(), argnums=(0, 1, 2, 3)),
        "jacrev": jacrev(lambda *inputs: attention(*inputs)[0, 0], argnums=(0, 2, 3)),
        "vmap vmap": lambda *qkv_bias: vmap(vmap(sample, own), own)(
            *(x.expand(2, *x.shape) for x in qkv_bias[:3]), BIAS
        ),
    }


@pytest.mark.parametrize("attention", [attend, attend_by_sdpa])
@pytest.mark.parametrize("name", transforms(attend))
def test_values(name, attention):
    inputs = (*TENSORS, BIAS)
    if name == "vmap of K alone":
        inputs = (TENSORS[1], TENSORS[0], TENSORS[2], BIAS)
    results = transforms(attention)[name](*inputs)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = transforms(by_pytorch)[name](*(x.double() for x in inputs))
    single = isinstance(results, torch.Tensor)
    for result, exact in zip([results] if single else results, [wanted] if single else wanted, strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["grad", "vjp", "vmap", "vmap grad", "jacrev"])
def test_compiled(name):
    torch._dynamo.reset()
    inputs = (*TENSORS, BIAS)
    results = torch.compile(transforms(attend)[name], backend="aot_eager", fullgraph=True)(*inputs)
    wanted = transforms(attend)[name](*inputs)
    assert all(map(torch.equal, [results] if name == "vmap" else results, [wanted] if name == "vmap" else wanted))


def test_vmap_beneath_the_tape():
    q, k, v = (x.clone().requires_grad_() for x in TENSORS)
    out = vmap(lambda q, k, v: attend(q[None], k[None], v[None])[0])(q, k, v)
    results = torch.autograd.grad(out.sin().sum(), (q, k, v))
    wanted = torch.autograd.grad(attend(q, k, v).sin().sum(), (q, k, v))
    for result, exact in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, exact, rtol=1e-5, atol=1e-6)


def test_lse_and_sinks_have_gradients():
    sink = torch.tensor([0.5, -1.0])

    def loss(q, sink):
        out, lse = strobe.torch.attention(q, *TENSORS[1:], sink=sink, return_lse=True)
        return out.sin().sum() + lse.cos().sum()

    results = grad(loss, argnums=(0, 1))(TENSORS[0], sink)
    leaves = [x.clone().requires_grad_() for x in (TENSORS[0], sink)]
    for result, exact in zip(results, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        assert torch.equal(result, exact)


@pytest.mark.parametrize(
    "transform", [hessian, lambda f: grad(lambda x: grad(f)(x).sum()), lambda f: jacrev(jacrev(f))]
)
def test_second_derivatives_raise(transform):
    q, k, v = TENSORS
    with pytest.raises(NotImplementedError, match="second derivative of attention"):
        transform(lambda q: attend(q, k, v).sin().sum())(q)


def test_dropout_draws_by_the_rule_of_vmap():
    q, k, v = TENSORS

    def dropped(q, k, v):
        return strobe.torch.attention(q[None], k[None], v[None], dropout=0.5)[0]

    with pytest.raises(RuntimeError, match="randomness"):
        vmap(dropped)(q, k, v)
    twice = [x[:1].expand(2, -1, -1, -1) for x in (q, k, v)]
    for randomness in ("same", "different"):
        first, second = vmap(dropped, randomness=randomness)(*twice)
        assert torch.equal(first, second) == (randomness == "same")
