# SPDX-License-Identifier: Apache-2.0
"""Training with strobe.torch on a GPU: pytest tests/gpu/python/test_python_gradients.py, where PyTorch is installed."""

import itertools
import os

import numpy as np
import plain_attention as plain
import pytest
import strobe
import strobe.torch
import torch
from strobe.torch import ops
from strobe.torch.ops import operator_arguments
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

BF16, FP16 = torch.bfloat16, torch.float16


def draw(*shape, dtype=BF16, grad=True):
    return torch.randn(shape, dtype=dtype, device="cuda", requires_grad=grad)


def draw_call(batch, sq, sk, heads, heads_kv, d, dv, dtype=BF16):
    return (
        draw(batch, sq, heads, d, dtype=dtype),
        draw(batch, sk, heads_kv, d, dtype=dtype),
        draw(batch, sk, heads_kv, dv, dtype=dtype),
    )


def grads(o, tensors, d_o=None):
    return torch.autograd.grad(o, tensors, torch.ones_like(o) if d_o is None else d_o)


def check(ours, theirs, tensors, dtype):
    """Outputs and gradients of `ours` beside those of `theirs` in float64 and in half precision."""
    d_outputs = [torch.randn(x.shape, device=x.device).to(x.dtype) for x in ours(*tensors)]
    plain.assert_as_close(
        plain.gradients(ours, tensors, d_outputs, dtype),
        plain.gradients(theirs, tensors, d_outputs, torch.float64),
        plain.gradients(theirs, tensors, d_outputs, dtype),
        dtype,
    )


# (seqlen_q, seqlen_k, heads, heads_kv, head_dim, head_dim_v) and options.
CASES = [
    ((512, 512, 4, 4, 64, 64), {}),
    ((777, 777, 4, 2, 64, 64), {"causal": True}),
    ((640, 640, 4, 4, 128, 128), {}),
    ((1000, 1000, 8, 2, 128, 128), {"causal": True}),
    ((129, 1023, 4, 4, 128, 128), {"causal": True}),
    ((300, 100, 2, 2, 128, 128), {"causal": True}),  # the first queries see no key
    ((513, 511, 2, 1, 256, 256), {}),
    ((515, 515, 2, 2, 256, 256), {"causal": True}),
    ((500, 300, 2, 2, 128, 128), {"causal": "top_left"}),
    ((600, 600, 2, 2, 64, 64), {"window": (100, 50)}),
    ((600, 600, 2, 2, 128, 128), {"causal": True, "window": (127, -1)}),
    ((450, 450, 2, 2, 256, 256), {"window": (64, 0)}),
    ((400, 400, 2, 2, 128, 128), {"causal": True, "chunk": 128}),
    ((400, 400, 4, 2, 128, 128), {"causal": True, "softcap": 15.0}),
    ((400, 400, 2, 2, 256, 256), {"softcap": 15.0, "scale": 0.3}),
    ((300, 400, 2, 2, 128, 128), {"scale": -0.05}),
    ((300, 400, 2, 2, 192, 128), {"causal": True}),
    ((300, 400, 2, 2, 72, 40), {}),
    ((1, 1000, 4, 2, 128, 128), {}),
    ((1000, 1, 4, 2, 128, 128), {}),
]


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("shape", "options"), CASES)
def test_against_plain_attention(shape, options, dtype):
    tensors = draw_call(2, *shape, dtype=dtype)
    check(
        lambda *x: strobe.torch.attention(*x, return_lse=True, **options),
        lambda *x: plain.attention(*x, **options),
        tensors,
        dtype,
    )


@pytest.mark.parametrize("head_dim", [64, 256])
def test_alibi(head_dim):
    slopes = 2.0 ** -torch.arange(1, 5, device="cuda", dtype=torch.float32)
    options = {"causal": True, "alibi_slopes": slopes}
    check(
        lambda *x: (strobe.torch.attention(*x, **options),),
        lambda *x: plain.attention(*x, **options)[:1],
        draw_call(2, 333, 333, 4, 2, head_dim, head_dim),
        BF16,
    )


@pytest.mark.parametrize("head_dim", [128, 256])
def test_sink(head_dim):
    sink = draw(4, dtype=torch.float32)
    check(
        lambda q, k, v, sink: (strobe.torch.attention(q, k, v, causal=True, sink=sink.float()),),
        lambda q, k, v, sink: plain.attention(q, k, v, causal=True, sink=sink)[:1],
        (*draw_call(2, 333, 333, 4, 2, head_dim, head_dim), sink),
        BF16,
    )


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences(head_dim, causal):
    lengths = [130, 0, 1, 515, 64]
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    options = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": 515, "max_seqlen_k": 515}
    q, k, v = (draw(sum(lengths), heads, head_dim) for heads in (4, 2, 2))
    check(
        lambda *x: (strobe.torch.attention(*x, causal=causal, **options),),
        lambda *x: (plain.packed_attention(*x, lengths, lengths, causal=causal),),
        (q, k, v),
        BF16,
    )


def test_padding_rows_get_zero_gradients():
    used = [100, 0, 256]
    options = {"causal": True, "seqused_q": torch.tensor(used, dtype=torch.int32, device="cuda")}
    options["seqused_k"] = options["seqused_q"]
    tensors = draw_call(3, 256, 256, 4, 4, 128, 128)
    d_o = torch.randn_like(tensors[0])
    found = grads(strobe.torch.attention(*tensors, **options), tensors, d_o)
    for row, length in enumerate(used):
        assert all((x[row, length:] == 0).all() for x in found)
        alone = [x[row : row + 1, :length] for x in tensors]
        wanted = grads(strobe.torch.attention(*alone, causal=True), alone, d_o[row : row + 1, :length])
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a[row : row + 1, :length], b, rtol=2e-2, atol=1e-2)


def test_packed_qkv():
    """Views of one tensor, as projections make them; the gradients come together in one."""
    qkv = draw(2, 300, 3, 4, 128)
    o = strobe.torch.attention(*qkv.unbind(2), causal=True)
    d_o = torch.randn_like(o)
    apart = [x.contiguous().detach().requires_grad_() for x in qkv.unbind(2)]
    wanted = grads(strobe.torch.attention(*apart, causal=True, deterministic=True), apart, d_o)
    o = strobe.torch.attention(*qkv.unbind(2), causal=True, deterministic=True)
    (found,) = grads(o, (qkv,), d_o)
    assert torch.equal(found, torch.stack(wanted, 2))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_deterministic(head_dim, causal):
    tensors = draw_call(2, 1111, 1111, 8, 2, head_dim, head_dim)
    o = strobe.torch.attention(*tensors, causal=causal, deterministic=True)
    d_o = torch.randn_like(o)
    first = torch.autograd.grad(o, tensors, d_o, retain_graph=True)
    for _ in range(10):
        again = torch.autograd.grad(o, tensors, d_o, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_layouts():
    """Inputs and incoming gradients of any strides."""
    tensors = draw_call(2, 300, 300, 4, 4, 128, 128)
    options = {"causal": True, "deterministic": True}
    o = strobe.torch.attention(*tensors, **options)
    wanted = grads(o, tensors)
    by_heads = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in tensors]
    found = [
        torch.autograd.grad(strobe.torch.attention(*tensors, **options).sum(), tensors),  # strides of 0
        grads(strobe.torch.attention(*by_heads, **options), by_heads),
        grads(
            strobe.torch.attention(*tensors, **options),
            tensors,
            torch.ones(2, 4, 300, 128, device="cuda", dtype=BF16).transpose(1, 2),
        ),
    ]
    for gradients in found:
        assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))


def test_engines_errors_reach_the_user():
    """What the GPU's engine lacks raises its own error, and nothing else computes the call."""
    q, k, v = draw_call(1, 64, 64, 2, 2, 64, 64)
    with pytest.raises(NotImplementedError, match="head_dim"):
        strobe.torch.attention(q[..., :60], k[..., :60], v)
    o = strobe.torch.attention(q, k, v)
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        dq.sum().backward()


def test_compile():
    def loss(q, k, v):
        return strobe.torch.attention(q * 1.5, k, v, causal=True, deterministic=True).sin().sum()

    tensors = draw_call(2, 300, 300, 4, 2, 128, 128)
    wanted = torch.autograd.grad(loss(*tensors), tensors)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*tensors), tensors)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * b.abs().max().item())  # the compiler fuses sin and sum
    whole = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for seqlen in (300, 333):
        tensors = draw_call(2, seqlen, seqlen, 4, 2, 128, 128)
        wanted = torch.autograd.grad(loss(*tensors), tensors)
        assert all(map(torch.equal, torch.autograd.grad(whole(*tensors), tensors), wanted))


@pytest.mark.parametrize("options", [{"causal": True}, {"window": (40, 0), "softcap": 20.0}])
def test_opcheck(options):
    q, k, v = draw_call(2, 128, 128, 8, 2, 64, 64)
    arguments = operator_arguments(q, k, v, {"deterministic": True, **options})
    torch.library.opcheck(torch.ops.strobe.attention.default, arguments)
    o, lse, _ = torch.ops.strobe.attention(*arguments)
    detached = (x.detach() for x in (torch.randn_like(o), torch.randn_like(lse), q, k, v, o, lse))
    torch.library.opcheck(torch.ops.strobe.attention_backward.default, (*detached, *arguments[3:-1], False, False, 0))
    assert len(arguments) == 3 + len(ops.TENSOR_NAMES) + len(ops.VALUE_NAMES) + 1


def test_autocast():
    q, k, v = (draw(2, 200, 4, 64, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cuda", BF16):
        o = strobe.torch.attention(q, k, v, causal=True)
    assert o.dtype == BF16
    d_o = torch.randn_like(o)
    found = grads(o, (q, k, v), d_o)
    halves = [x.detach().to(BF16).requires_grad_() for x in (q, k, v)]
    wanted = grads(strobe.torch.attention(*halves, causal=True), halves, d_o)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b.float(), rtol=1e-2, atol=1e-2 * b.abs().max().item())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    tensors = draw_call(2, 256, 256, 4, 4, 64, 64)

    def layer(q, k, v):
        return strobe.torch.attention(q.sin(), k, v, causal=True, deterministic=True)

    wanted = grads(layer(*tensors), tensors)
    checkpoint(layer, *tensors, use_reentrant=reentrant).sum().backward()
    assert all(torch.equal(x.grad, gradient) for x, gradient in zip(tensors, wanted, strict=True))


@pytest.mark.parametrize("head_dim", [128, 256])
def test_cuda_graph(head_dim):
    """Forward and backward in one graph; what the graph's workspace held before does not matter to a replay."""
    tensors = draw_call(2, 700, 700, 8, 2, head_dim, head_dim)
    d_o = torch.randn(2, 700, 8, head_dim, device="cuda", dtype=BF16)

    def step():
        return grads(strobe.torch.attention(*tensors, causal=True, deterministic=True), tensors, d_o)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for _ in range(100):
        with torch.no_grad():
            for x in tensors:
                x.normal_()
        for x in found:
            x.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, found, step()))


def test_two_streams():
    """Calls that overlap share no workspace."""
    calls = [draw_call(2, 1024, 1024, 8, 8, d, d) for d in (64, 128, 64, 128)]
    options = {"causal": True, "deterministic": True}
    wanted = [grads(strobe.torch.attention(*call, **options), call) for call in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(20):
        found = []
        for index, call in enumerate(calls):
            with torch.cuda.stream(streams[index % 2]):
                found.append(grads(strobe.torch.attention(*call, **options), call))
        torch.cuda.synchronize()
        for a, b in zip(found, wanted, strict=True):
            assert all(map(torch.equal, a, b))


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes use the device's memory, too")
def test_device_memory_is_pytorchs():
    """It comes from the caching allocator, which has it back when the call returns: more shapes take no more memory."""

    def step(seqlen):
        tensors = draw_call(1, seqlen, seqlen, 16, 16, 128, 128)
        grads(strobe.torch.attention(*tensors, causal=True), tensors)

    def outside_pytorch():
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    step(8192)
    before, held = outside_pytorch(), torch.cuda.memory_allocated()
    for seqlen in range(4096, 8192, 128):
        step(seqlen)
    assert torch.cuda.memory_allocated() == held
    assert outside_pytorch() - before < 2**25  # kernels that were not loaded yet
    tensors = draw_call(1, 8192, 8192, 16, 16, 128, 128)
    o = strobe.torch.attention(*tensors, causal=True)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    gradients = grads(o, tensors, o.detach())
    written = sum(x.numel() * x.element_size() for x in gradients)
    assert torch.cuda.max_memory_allocated() - held > written


def test_sdpa_is_routed():
    q, k, v = (draw(2, 8, 200, 64) for _ in range(3))
    with strobe.torch.sdpa():
        o = scaled_dot_product_attention(q, k, v, is_causal=True)
    d_o = torch.randn_like(o)
    found = grads(o, (q, k, v), d_o)
    wanted = grads(scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), d_o)
    assert o.grad_fn.name() != scaled_dot_product_attention(q, k, v).grad_fn.name()
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * b.abs().max().item())


@pytest.mark.parametrize("head_dim", [64, 100])
def test_drop_ins(head_dim):
    """Both modules, batched and packed; any head_dim, as FlashAttention has it."""
    flash_attn = pytest.importorskip("flash_attn")
    flash_attn_interface = pytest.importorskip("flash_attn_interface")
    q, k, v = draw_call(2, 256, 256, 4, 2, head_dim, head_dim)
    cu_seqlens = torch.tensor([0, 256, 512], dtype=torch.int32, device="cuda")
    found = []
    for module in (flash_attn, flash_attn_interface):
        batched = module.flash_attn_func(q, k, v, causal=True, deterministic=True)
        packed = module.flash_attn_varlen_func(
            *(x.flatten(0, 1) for x in (q, k, v)),
            *(cu_seqlens, cu_seqlens, 256, 256),
            causal=True,
            deterministic=True,
        )
        found += [grads(o, (q, k, v)) for o in (batched, packed.unflatten(0, (2, 256)))]
    for gradients in found[1:]:
        for a, b in zip(gradients, found[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2 * b.abs().max().item())
    check(
        lambda *x: (flash_attn.flash_attn_func(*x, causal=True),),
        lambda *x: plain.attention(*x, causal=True)[:1],
        (q, k, v),
        BF16,
    )


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q, k, v = (cupy.random.standard_normal((1, 200, 4, 64)).astype(cupy.float16) for _ in range(3))
    with cupy.cuda.Stream(non_blocking=True):
        o, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
        found = strobe.attention_backward(o, q, k, v, o, lse, causal=True)
        host = [torch.from_numpy(cupy.asnumpy(x)).cuda() for x in (q, k, v, o)]
    inputs = [x.requires_grad_() for x in host[:3]]
    wanted = grads(strobe.torch.attention(*inputs, causal=True), inputs, host[3])
    for a, b in zip(found, wanted, strict=True):
        b = b.cpu().float()
        torch.testing.assert_close(
            torch.from_numpy(cupy.asnumpy(a)).float(), b, rtol=1e-2, atol=1e-2 * b.abs().max().item()
        )


def test_jax():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    import strobe.jax

    shapes = [(2, 300, 8, 64), (2, 300, 2, 64), (2, 300, 2, 64)]
    arrays = [jax.random.normal(jax.random.key(i), shape, "bfloat16") for i, shape in enumerate(shapes)]

    def loss(q, k, v):
        return strobe.jax.attention(q, k, v, causal=True).astype("float32").sum()

    inputs = [torch.from_numpy(np.array(x.astype("float32"))).cuda().bfloat16().requires_grad_() for x in arrays]
    wanted = grads(strobe.torch.attention(*inputs, causal=True), inputs)
    for gradient in (jax.grad(loss, (0, 1, 2)), jax.jit(jax.grad(loss, (0, 1, 2)))):
        for _ in range(3):
            for a, b in zip(gradient(*arrays), wanted, strict=True):
                b = b.cpu().float()
                found = torch.from_numpy(np.array(a.astype("float32")))
                torch.testing.assert_close(found, b, rtol=1e-2, atol=1e-2 * b.abs().max().item())
