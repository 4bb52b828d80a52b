# SPDX-License-Identifier: Apache-2.0
"""strobe.torch: gradients, operators, compilers, autocast, and scaled_dot_product_attention."""

import random
import sys

import pytest
import strobe
import strobe.torch
import torch
from strobe.torch import ops
from strobe.torch.ops import operator_arguments
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def draw(*shapes, dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


SHAPES = [(2, 5, 2, 4), (2, 6, 1, 4), (2, 6, 1, 3)]
OPTIONS = [
    {},
    {"causal": True, "window": (3, -1)},
    {"softcap": 3.0, "sink": torch.randn(2)},
    {"bias": torch.randn(1, 2, 5, 6), "dropout": 0.25, "seed": 2**63 + 5, "offset": 1},
    {"score": "tanh(score) * a[head]", "mask_text": "k != 3", "captures": {"a": torch.randn(2)}},
]


@pytest.mark.filterwarnings("ignore:Input #")  # float32 is what is checked; eps and tolerances are chosen for it
@pytest.mark.parametrize("options", OPTIONS)
def test_gradcheck(options):
    """Central differences in float32, through the output and through lse."""
    tensors = draw(*SHAPES)
    names = [name for name in ("bias", "sink") if name in options]
    tensors += [options[name].clone().requires_grad_() for name in names]

    def function(q, k, v, *others):
        given = {**options, **dict(zip(names, others, strict=True))}
        o, lse = strobe.torch.attention(q, k, v, return_lse=True, **given)
        return o.double(), lse.double()

    assert torch.autograd.gradcheck(function, tensors, eps=1e-2, atol=2e-3, rtol=1e-2, check_undefined_grad=True)


@pytest.mark.parametrize("options", OPTIONS)
def test_opcheck(options):
    q, k, v = draw(*SHAPES)
    arguments = operator_arguments(q, k, v, options)
    torch.library.opcheck(torch.ops.strobe.attention.default, arguments)
    *rest, _ = arguments[3:]
    with torch.no_grad():
        o, lse, _ = torch.ops.strobe.attention(*arguments)
        detached = [x.detach() for x in (q, k, v)]
    needs = ["bias" in options, "sink" in options, int("captures" in options)]
    torch.library.opcheck(
        torch.ops.strobe.attention_backward.default,
        (torch.randn_like(o), torch.randn_like(lse), *detached, o, lse, *rest, *needs),
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_eager_calls_are_the_operators(options):
    """Without the dispatcher, which costs several times the call, and with the same bits."""
    tensors = draw(*SHAPES)
    options = {name: x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    tensors += [x for x in options.values() if isinstance(x, torch.Tensor)]
    results = []
    for call in (strobe.torch.attention, lambda *x, **o: torch.ops.strobe.attention(*operator_arguments(*x, o))[0]):
        o = call(*tensors[:3], **options)
        results.append((o, *torch.autograd.grad(o.sin().sum(), tensors)))
    eager, dispatched = results
    assert eager[0].grad_fn.name() != dispatched[0].grad_fn.name()
    for a, b in zip(eager, dispatched, strict=True):
        assert torch.equal(a, b)


def test_modes_see_the_operators():
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names = []
    tensors = draw(*SHAPES)
    with Names():
        torch.autograd.grad(strobe.torch.attention(*tensors).sum(), tensors)
    assert [name for name in names if "strobe" in name] == [
        "strobe.attention.default",
        "strobe.attention_backward.default",
    ]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    tensors = draw(*SHAPES)
    wanted = torch.autograd.grad(strobe.torch.attention(*tensors).sin().sum(), tensors)
    again = checkpoint(strobe.torch.attention, *tensors, use_reentrant=reentrant)
    again.sin().sum().backward()
    assert all(torch.equal(x.grad, gradient) for x, gradient in zip(tensors, wanted, strict=True))


def test_changed_inputs_are_noticed():
    q, k, v = draw(*SHAPES)
    bias = torch.zeros(1, 1, 5, 6)
    o = strobe.torch.attention(q, k, v, bias=bias)
    bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_packed_sequences():
    cu_seqlens = torch.tensor([0, 4, 4, 13], dtype=torch.int32)
    q, k, v = draw(*[(13, 2, 8)] * 3)
    options = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": 9, "max_seqlen_k": 9}
    torch.library.opcheck(torch.ops.strobe.attention.default, operator_arguments(q, k, v, options))
    packed = torch.autograd.grad(strobe.torch.attention(q, k, v, causal=True, **options).sin().sum(), (q, k, v))
    alone = [
        strobe.torch.attention(*(x[None, start:end] for x in (q, k, v)), causal=True)[0]
        for start, end in ((0, 4), (4, 13))
    ]
    for a, b in zip(packed, torch.autograd.grad(torch.cat(alone).sin().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def plain(q, k, v, bias, causal, scale):
    """Attention [batch, seqlen, heads, head_dim] as its equation says, every step in the inputs' dtype."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q * scale) @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)


def sdpa(q, k, v, bias, causal, scale):
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    o = scaled_dot_product_attention(*heads_first, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=True)
    return o.transpose(1, 2)


@pytest.mark.parametrize("case", range(40))
def test_random_options_against_sdpa(case):
    """max|out - sdpa in float64| <= 2 max|plain attention in the inputs' dtype - sdpa in float64|, gradients too."""
    choose = random.Random(case)
    dtype = choose.choice([torch.float32, torch.float16, torch.bfloat16])
    batch, heads_kv, group = choose.randint(1, 3), choose.randint(1, 3), choose.choice([1, 1, 2, 4])
    sq, sk = choose.randint(1, 130), choose.randint(1, 130)
    d, dv = choose.choice([8, 32, 40, 64]), choose.choice([8, 24, 64])
    causal, scale = choose.random() < 0.4, choose.choice([d**-0.5, 0.2])
    inputs = draw((batch, sq, heads_kv * group, d), (batch, sk, heads_kv, d), (batch, sk, heads_kv, dv), dtype=dtype)
    bias = None if causal or choose.random() < 0.5 else torch.randn(batch, 1, sq, sk, dtype=dtype)
    d_o = torch.randn(batch, sq, heads_kv * group, dv, dtype=dtype)

    def with_gradients(function, dtype):
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in inputs)
        o = function(q, k, v, None if bias is None else bias.to(dtype))
        return [x.double() for x in (o, *torch.autograd.grad(o, (q, k, v), d_o.to(dtype)))]

    def ours(q, k, v, bias):
        return strobe.torch.attention(q, k, v, bias=bias, scale=scale, causal="top_left" if causal else False)

    results = with_gradients(ours, dtype)
    exact = with_gradients(lambda *tensors: sdpa(*tensors, causal, scale), torch.float64)
    peer = with_gradients(lambda *tensors: plain(*tensors, causal, scale), dtype)
    for result, wanted, theirs in zip(results, exact, peer, strict=True):
        # The terms are about 1, and where there are few the peer may be lucky with all of them.
        rounding = 4 * torch.finfo(dtype).eps * max(wanted.abs().max(), 1)
        assert (result - wanted).abs().max() <= 2 * (theirs - wanted).abs().max() + rounding


def test_results_and_layouts():
    q, k, v = draw((2, 9, 4, 8), (2, 9, 2, 8), (2, 9, 2, 8))
    o = strobe.torch.attention(q, k, v)
    assert o.requires_grad
    assert len(strobe.torch.attention(q, k, v, return_lse=True, return_max_logits=True)) == 3
    sparse_rows = [torch.stack([x, x], -1).flatten(-2)[..., ::2] for x in (q, k, v)]
    assert sparse_rows[0].stride(-1) == 2
    torch.testing.assert_close(strobe.torch.attention(*sparse_rows), o, rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(strobe.torch.attention(q, k, v), strobe.attention(q, k, v))


def test_max_logits_has_no_gradient():
    q, k, v = draw(*[(1, 4, 1, 8)] * 3)
    assert not strobe.torch.attention(q, k, v, return_max_logits=True)[1].requires_grad


def test_second_derivatives_are_rejected():
    q, k, v = draw(*[(1, 4, 1, 8)] * 3)
    (dq,) = torch.autograd.grad(strobe.torch.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="the second derivative of attention was asked for: Strobe has the"):
        dq.sum().backward()


def test_gradient_of_slopes_is_rejected():
    q, k, v = draw(*[(1, 4, 1, 8)] * 3)
    with pytest.raises(NotImplementedError, match="alibi_slopes requires a gradient, which attention does not have"):
        strobe.torch.attention(q, k, v, alibi_slopes=torch.ones(1, requires_grad=True))


def test_wrong_options():
    q, k, v = draw(*[(1, 4, 1, 8)] * 3)
    with pytest.raises(TypeError, match="softmax_scale is no option of strobe"):
        strobe.torch.attention(q, k, v, softmax_scale=1.0)
    with pytest.raises(ValueError, match='causal is "left": it must be True, False, "bottom_right" or "top_left"'):
        strobe.torch.attention(q, k, v, causal="left")
    with pytest.raises(ValueError, match="k has head_dim 4 and q has 8: they must be equal"):
        strobe.torch.attention(q, k[..., :4], v)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    def loss(q, k, v, bias):
        return strobe.torch.attention(q * 1.5, k, v, causal=True, bias=bias).sin().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for seqlen in (8, 12):
        tensors = draw(*[(2, seqlen, 2, 8)] * 3, (1, 1, seqlen, seqlen))
        wanted = torch.autograd.grad(loss(*tensors), tensors)
        torch.testing.assert_close(torch.autograd.grad(compiled(*tensors), tensors), wanted, rtol=0, atol=0)


def test_compiled_dropout_draws_anew():
    compiled = torch.compile(
        lambda q, k, v: strobe.torch.attention(q, k, v, dropout=0.5), fullgraph=True, backend="aot_eager"
    )
    q, k, v = draw(*[(1, 40, 2, 8)] * 3)
    assert not torch.equal(compiled(q, k, v), compiled(q, k, v))
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        results.append(strobe.torch.attention(q, k, v, dropout=0.5))
    assert torch.equal(*results)


def test_export():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return strobe.torch.attention(q, k, v, causal=True, return_lse=True)

    tensors = [x.detach() for x in draw(*[(2, 8, 2, 8)] * 3)]
    program = torch.export.export(Layer(), tuple(tensors))
    assert "strobe.attention" in str(program.graph)
    for a, b in zip(program.module()(*tensors), Layer()(*tensors), strict=True):
        assert torch.equal(a, b)


def test_autocast():
    q, k, v = draw(*[(2, 8, 2, 8)] * 3)
    with torch.autocast("cpu", torch.bfloat16):
        o = strobe.torch.attention(q, k, v)
    assert o.dtype == torch.bfloat16
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_operators_speak_for_themselves():
    schema = str(torch.ops.strobe.attention.default._schema)
    assert all(name in schema for name in (*ops.TENSOR_NAMES, *ops.VALUE_NAMES))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"is_causal": True},
        {"scale": 0.1},
        {"attn_mask": torch.randn(9, 9)},
        {"attn_mask": torch.rand(2, 1, 9, 9) > 0.3},
        {"attn_mask": torch.rand(2, 1, 1, 9) > 0.3},
        {"attn_mask": torch.randn(2, 4, 9, 1)},
        {"enable_gqa": True},
    ],
)
def test_sdpa_is_routed(arguments):
    heads_kv = 2 if arguments.get("enable_gqa") else 4
    q, k, v = draw((2, 4, 9, 8), (2, heads_kv, 9, 8), (2, heads_kv, 9, 8))
    wanted = scaled_dot_product_attention(q, k, v, **arguments)
    with strobe.torch.sdpa():
        o = scaled_dot_product_attention(q, k, v, **arguments)
    assert o.grad_fn.name() != wanted.grad_fn.name()
    torch.testing.assert_close(o, wanted, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (o, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("query", "key", "value", "arguments"),
    [
        ((9, 8), (9, 8), (9, 8), {}),
        ((9, 8), (7, 8), (7, 6), {"attn_mask": torch.randn(9, 7)}),
        ((4, 9, 8), (4, 9, 8), (4, 9, 8), {"attn_mask": torch.randn(9, 9)}),
        ((4, 9, 8), (4, 9, 8), (4, 9, 8), {"attn_mask": torch.randn(4, 1, 9)}),
        ((2, 3, 4, 9, 8), (2, 3, 4, 9, 8), (2, 3, 4, 9, 8), {"attn_mask": torch.randn(9)}),
        ((2, 3, 4, 9, 8), (2, 3, 4, 9, 8), (2, 3, 4, 9, 8), {"attn_mask": torch.randn(3, 1, 9, 9)}),
        ((2, 3, 4, 9, 8), (2, 3, 4, 9, 8), (2, 3, 4, 9, 8), {"is_causal": True}),
        ((2, 4, 9, 8), (1, 4, 7, 8), (2, 1, 7, 8), {}),
        ((2, 4, 9, 8), (1, 7, 8), (7, 6), {"attn_mask": torch.rand(2, 1, 9, 7) > 0.3}),
        ((1, 1, 9, 8), (2, 4, 7, 8), (2, 4, 7, 8), {"attn_mask": torch.randn(4, 1, 7)}),
        ((9, 8), (2, 4, 7, 8), (4, 7, 8), {}),
        ((3, 1, 4, 9, 8), (2, 4, 7, 8), (7, 8), {"attn_mask": torch.randn(3, 2, 4, 9, 7)}),
        ((2, 3, 4, 9, 8), (2, 3, 2, 9, 8), (2, 3, 2, 9, 8), {"enable_gqa": True}),
    ],
)
def test_sdpa_broadcasts_as_pytorch_does(query, key, value, arguments):
    q, k, v = draw(query, key, value)
    wanted = scaled_dot_product_attention(q, k, v, **arguments)
    with strobe.torch.sdpa():
        o = scaled_dot_product_attention(q, k, v, **arguments)
        with torch.no_grad():
            inferred = scaled_dot_product_attention(q, k, v, **arguments)
    assert o.shape == wanted.shape
    torch.testing.assert_close(o, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(inferred, wanted, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (o, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_sdpa_names_what_does_not_fit():
    def message(query, key, **arguments):
        q, k = (torch.zeros(shape) for shape in (query, key))
        with strobe.torch.sdpa(), pytest.raises(ValueError) as error:
            scaled_dot_product_attention(q, k, k, **arguments)
        return str(error.value)

    assert message((8,), (9, 8)) == "query has rank 1: it must be 2 or more"
    assert message((4, 9, 8), (9, 8), enable_gqa=True) == "key has rank 2: it must be 3 or more"
    assert message((2, 4, 9, 8), (2, 2, 9, 8)) == "query has 4 heads and key 2: set enable_gqa"
    mask = torch.zeros(1, 1, 1, 9, 9)
    wanted = "attn_mask has shape [1, 1, 1, 9, 9]: it must broadcast to [2, 4, 9, 9]"
    assert message((2, 4, 9, 8), (2, 4, 9, 8), attn_mask=mask) == wanted


def test_sdpa_falls_back_when_told(monkeypatch):
    def lacking(*args, **kwargs):
        raise NotImplementedError("no engine has it")

    monkeypatch.setattr(sys.modules["strobe.torch.sdpa"], "attention", lacking)
    q, k, v = draw(*[(2, 5, 8)] * 3)
    with pytest.raises(NotImplementedError, match="no engine has it"), strobe.torch.sdpa():
        scaled_dot_product_attention(q, k, v)
    with strobe.torch.sdpa(fallback=True):
        torch.testing.assert_close(scaled_dot_product_attention(q, k, v), scaled_dot_product_attention(q, k, v))
