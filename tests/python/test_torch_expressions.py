# SPDX-License-Identifier: Apache-2.0
"""Score and mask texts in PyTorch: gradients of captures on the tape, in graphs and under transforms."""

import expression_reference
import pytest
import strobe
import strobe.torch
import torch
from expression_reference import copies, draw

B, SQ, SK, H, D = 2, 21, 33, 4, 16
Q, K, V, D_OUT = draw(1, B, SQ, H, D), draw(2, B, SK, 2, D), draw(3, B, SK, 2, D), draw(4, B, SQ, H, D)
SCORE = "(score + table[head][k - q + 20] * seen) * temperature + bias[q][k]"
MASK = "document[batch][k] <= 1 && seen"
TABLE, TEMPERATURE, BIAS = draw(5, H, SQ + SK), torch.tensor(1.25), draw(6, SK, SQ).T
DOCUMENT = torch.arange(SK).remainder(3).expand(B, SK)
SEEN = torch.tensor(True)


def captures(table=TABLE, temperature=TEMPERATURE, bias=BIAS):
    return {"table": table, "temperature": temperature, "bias": bias, "document": DOCUMENT, "seen": SEEN}


def leaves(*tensors, dtype=torch.float32):
    return copies(*tensors, dtype=dtype)


def attend(q, k, v, *of_captures, **options):
    return strobe.torch.attention(q, k, v, score=SCORE, mask=MASK, captures=captures(*of_captures), **options)


def exact():
    """out, lse and the gradients of q, k, v, table, temperature and bias."""
    q, k, v, table, temperature, bias = given = copies(Q, K, V, TABLE, TEMPERATURE, BIAS)
    out, lse = expression_reference.attention(
        q, k, v,
        lambda s, b, h, i, j: (s + table[h, j - i + 20]) * temperature + bias[i, j],
        lambda b, h, i, j: DOCUMENT[b, j] <= 1,
    )  # fmt: skip
    loss = (out * D_OUT).sum() + lse.square().sum()
    return out.detach(), lse.detach(), torch.autograd.grad(loss, given)


WANTED = exact()


def check(call):
    given = leaves(Q, K, V, TABLE, TEMPERATURE, BIAS)
    out, lse = call(*given)
    torch.testing.assert_close(out.double(), WANTED[0], rtol=0, atol=1e-5)
    gradients = torch.autograd.grad((out * D_OUT).sum() + lse.square().sum(), given)
    for gradient, x, wanted in zip(gradients, given, WANTED[2], strict=True):
        assert gradient.shape == x.shape
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=2e-4)


def test_gradients_of_eager_calls():
    check(lambda *x: attend(*x, return_lse=True))


def test_gradients_of_compiled_calls():
    torch._dynamo.reset()
    check(torch.compile(lambda *x: attend(*x, return_lse=True), fullgraph=True, backend="aot_eager"))


def test_gradients_of_the_operator():
    """What modes and transforms see."""

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **kwargs or {})

    seen = []
    with Mode():
        check(lambda *x: attend(*x, return_lse=True))
    assert "strobe.attention.default" in seen
    assert "strobe.attention_backward.default" in seen


def test_functional_gradients_and_vmap():
    def loss(*x):
        out, lse = attend(*x, return_lse=True)
        return (out * D_OUT).sum() + lse.square().sum()

    gradients = torch.func.grad(loss, argnums=tuple(range(6)))(Q, K, V, TABLE, TEMPERATURE, BIAS)
    for gradient, wanted in zip(gradients, WANTED[2], strict=True):
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=2e-4)
    tables = torch.stack([TABLE, TABLE * 2, -TABLE])
    batched = torch.vmap(lambda table: attend(Q, K, V, table))(tables)
    for sample, table in zip(batched, tables, strict=True):
        torch.testing.assert_close(sample, attend(Q, K, V, table), rtol=0, atol=0)
    batched = torch.vmap(torch.func.grad(lambda table: attend(Q, K, V, table).square().sum()))(tables)
    one = torch.func.grad(lambda table: attend(Q, K, V, table).square().sum())(tables[1])
    torch.testing.assert_close(batched[1], one, rtol=0, atol=0)


def test_forward_mode_is_an_error():
    with pytest.raises(NotImplementedError, match="no engine has the JVP of a score that a text says"):
        torch.func.jvp(lambda q: attend(q, K, V), (Q,), (Q,))
    with pytest.raises(NotImplementedError, match="a capture has a tangent"):
        torch.func.jvp(lambda table: attend(Q, K, V, table), (TABLE,), (TABLE,))


def test_second_derivatives_are_an_error():
    given = leaves(Q, K, V, TABLE)
    (gradient,) = torch.autograd.grad(attend(*given).square().sum(), given[3], create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        gradient.sum().backward()


def test_gradients_are_of_the_captures_dtype():
    table, bias = leaves(TABLE, BIAS, dtype=torch.bfloat16)
    out = attend(Q, K, V, table, TEMPERATURE, bias)
    out.backward(D_OUT)
    assert table.grad.dtype == bias.grad.dtype == torch.bfloat16
    torch.testing.assert_close(table.grad.float(), exact_gradient(3), rtol=0.02, atol=0.1)


def exact_gradient(at):
    """Of sum(out * D_OUT) alone."""
    given = leaves(Q, K, V, TABLE, TEMPERATURE, BIAS)
    return torch.autograd.grad((attend(*given) * D_OUT).sum(), given[at])[0]


def test_captures_that_the_score_does_not_depend_on_have_no_gradient():
    limit, table = leaves(draw(7, H), TABLE)
    options = {"score": "score + table[head][k]", "mask": "limit[head] * 4 < k"}
    out = strobe.torch.attention(Q, K, V, **options, captures={"limit": limit, "table": table})
    out.backward(D_OUT)
    assert limit.grad is None
    assert table.grad.abs().max() > 0
    assert (table.grad[:, SK:] == 0).all()


def test_texts_beside_other_options():
    """A bias and a sink have their gradients, too."""
    added, sink, table = leaves(draw(8, 1, H, SQ, SK), draw(9, H), TABLE)
    options = {"causal": True, "softcap": 5.0, "sink": sink, "bias": added}
    out = strobe.torch.attention(Q, K, V, score="score * table[head][k]", captures={"table": table}, **options)
    out.backward(D_OUT)
    with torch.no_grad():
        same = strobe.torch.attention(Q, K, V, score="score * table[head][k]", captures={"table": table}, **options)
    assert torch.equal(out, same)
    assert all(x.grad.abs().max() > 0 for x in (added, sink, table))


def test_tensors_that_are_written_after_the_forward_are_noticed():
    table = draw(5, H, SQ + SK)
    query = Q.clone().requires_grad_()
    out = attend(query, K, V, table)
    table.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_export():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(TABLE)

        def forward(self, q, k, v):
            return strobe.torch.attention(q, k, v, score="score + table[head][k]", captures={"table": self.table})

    model = Model()
    exported = torch.export.export(model, (Q, K, V)).module()
    assert torch.equal(exported(Q, K, V), model(Q, K, V))


def test_calls_without_gradients():
    with torch.no_grad():
        out = strobe.attention(Q, K, V, score=SCORE, mask=MASK, captures=captures())
    torch.testing.assert_close(out.double(), WANTED[0], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"capture `table` requires a gradient, which strobe\.attention does not"):
        strobe.attention(Q, K, V, score=SCORE, captures=captures(TABLE.clone().requires_grad_()))
    compiled = torch.compile(
        lambda q: strobe.attention(q, K, V, score=SCORE, mask=MASK, captures=captures()),
        fullgraph=True,
        backend="aot_eager",
    )
    assert torch.equal(compiled(Q), out)


def test_a_wrong_text_is_an_error_of_the_compiler_too():
    compiled = torch.compile(lambda q: strobe.torch.attention(q, K, V, score="scores"), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="unknown name `scores`"):
        compiled(Q)


def test_wrong_captures():
    with pytest.raises(TypeError, match=r"capture `table` is of type float: it must be a torch\.Tensor"):
        attend(Q, K, V, 2.0)
    with pytest.raises(TypeError, match="captures is of type list"):
        strobe.torch.attention(Q, K, V, score="score", captures=[TABLE])
    many = {f"t{i}": TEMPERATURE for i in range(9)}
    with pytest.raises(ValueError, match="captures: 9 are given, 8 are the most"):
        strobe.torch.attention(Q, K, V, score=" + ".join(["score", *many]), captures=many)


def test_functions_with_their_captures():
    function = strobe.ScoreFunction(SCORE, MASK, captures())
    given = leaves(Q, K, V)
    assert torch.equal(strobe.torch.attention(*given, score=function), attend(*given))


def test_calls_on_many_devices_have_no_texts():
    lengths = torch.tensor([SK, SK], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"score is given: strobe\.torch\.shard_attention has"):
        strobe.torch.shard_attention(Q[:, :1], K, V, lengths, shard=(0, 1), score="score * 2")


def test_what_a_mask_hides_no_score_brings_back_in_a_graph():
    seen = torch.rand(B, SQ, SK, generator=torch.Generator().manual_seed(3)) < 0.7

    def attend(score, mask, captures=None):
        return strobe.torch.attention(Q, K, V, score=score, mask=mask, captures=captures)

    for score in ("2 * tanh(score)", "score + k"):
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        wanted = attend(score, "seen[batch][q][k]", {"seen": seen})
        torch.testing.assert_close(compiled(score, seen), wanted, rtol=0, atol=2e-6)
        torch.testing.assert_close(attend(score, seen), wanted, rtol=0, atol=2e-6)
