# SPDX-License-Identifier: Apache-2.0
"""strobe.attention and strobe.append in one compiled graph: the bits of eager calls, in the memory that is given."""

import pytest
import strobe
import strobe.torch
import torch

BATCH, HEADS, HEADS_KV, HEAD_DIM, PAGE = 3, 4, 2, 16, 8


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **{"backend": "aot_eager"} | options)


def cache():
    """Pages, the table that names them in any order, and lengths."""
    pages = [draw(BATCH * 4, PAGE, HEADS_KV, HEAD_DIM, seed=seed) for seed in (1, 2)]
    order = torch.randperm(BATCH * 4, generator=torch.Generator().manual_seed(3)).int()
    return *pages, order.view(BATCH, 4), torch.tensor([5, 16, 23], dtype=torch.int32)


def step(k, v, table, lengths, q, new, angles, out):
    """A decode step: new rows behind the cache's, then attention over all of them, into out."""
    cos, sin = angles
    q = strobe.append(k, v, *new, lengths, page_table=table, q=q, cos=cos, sin=sin)
    lengths = lengths + 1
    result = strobe.attention(q, k, v, out=out, causal=True, page_table=table, seqused_k=lengths)
    return result, lengths


def inputs():
    q, *new = (draw(BATCH, 1, heads, HEAD_DIM, seed=4 + heads) for heads in (HEADS, HEADS_KV, HEADS_KV))
    angles = [function(torch.arange(32)[:, None] / torch.arange(1, 9)) for function in (torch.cos, torch.sin)]
    return [*cache(), q, new, angles, torch.full((BATCH, 1, HEADS, HEAD_DIM), torch.nan)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_decode_step_is_one_graph(backend):
    here, there = inputs(), inputs()
    run = compiled(step, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            (wanted, here[3]), (result, there[3]) = step(*here), run(*there)
            assert torch.equal(result, wanted)
            assert result.data_ptr() == there[-1].data_ptr()
            for x, y in zip(here[:4], there[:4], strict=True):
                assert torch.equal(x, y)
            assert torch.equal(there[-1], wanted)


def step_in_8_bits(k, v, k_scales, v_scales, lengths, q, new):
    """The same on a cache in 8 bits, of which the append finds the scales of rows."""
    strobe.append(k, v, *new, lengths, k_row_descale=k_scales, v_row_descale=v_scales)
    lengths = lengths + 1
    return strobe.attention(q, k, v, seqused_k=lengths, k_descale=k_scales, v_descale=v_scales), lengths


def inputs_in_8_bits():
    q, *new = (draw(BATCH, 1, heads, HEAD_DIM, seed=4 + heads) for heads in (HEADS, HEADS_KV, HEADS_KV))
    caches = [torch.zeros(BATCH, 30, HEADS_KV, HEAD_DIM, dtype=torch.int8) for _ in range(2)]
    scales = [torch.zeros(BATCH, HEADS_KV, 30) for _ in range(2)]
    return [*caches, *scales, torch.tensor([5, 0, 23], dtype=torch.int32), q, new]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_decode_step_in_8_bits_is_one_graph(backend):
    here, there = inputs_in_8_bits(), inputs_in_8_bits()
    run = compiled(step_in_8_bits, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            (wanted, here[4]), (result, there[4]) = step_in_8_bits(*here), run(*there)
            assert torch.equal(result, wanted)
            for x, y in zip(here[:5], there[:5], strict=True):
                assert torch.equal(x, y)
    assert here[2].count_nonzero() == 2 * BATCH * HEADS_KV


CALLS = {
    "plain": {},
    "lse and max_logits": {"return_lse": True, "return_max_logits": True, "causal": "top_left"},
    "lengths": {"seqused_k": torch.tensor([3, 0, 9], dtype=torch.int32), "leftpad_k": torch.tensor([1, 0, 2]).int()},
    "entries": {"cache_batch_idx": torch.tensor([2, 0, 2], dtype=torch.int32), "window": (3, 1)},
    "tree": {"tree_mask": torch.tensor([[1, 3, 5, 9]] * BATCH), "causal": True, "engine": "cpu"},
    "seed": {"dropout": 0.5, "seed": 2**64 - 1, "offset": 3},
    "bias": {"bias": draw(1, HEADS, 4, 9, seed=5), "softcap": 3.0, "scale": torch.tensor(0.5)},
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_options(options):
    q, k, v = draw(BATCH, 4, HEADS, HEAD_DIM), *(draw(BATCH, 9, HEADS_KV, HEAD_DIM, seed=seed) for seed in (1, 2))

    def call():
        return strobe.attention(q, k, v, **options)

    results, wanted = compiled(call)(), call()
    several = isinstance(wanted, tuple)
    for result, exact in zip(results if several else [results], wanted if several else [wanted], strict=True):
        assert torch.equal(result, exact)


def test_8_bits():
    x = strobe.quantize(*(draw(BATCH, 40, HEADS, 32, seed=seed) for seed in range(3)), seed=2**64 - 5)
    wanted = strobe.attention(x.q, x.k, x.v, **x.options)
    assert torch.equal(compiled(lambda: strobe.attention(x.q, x.k, x.v, **x.options))(), wanted)
    with pytest.raises(ValueError, match="give out, or out_dtype"):
        options = {name: value for name, value in x.options.items() if name != "out_dtype"}
        torch.compile(lambda: strobe.attention(x.q, x.k, x.v, **options), backend="aot_eager")()


def test_operators_say_what_they_write():
    k, v, table, lengths, q, new, (cos, sin), out = inputs()
    tensors = {"page_table": table, "q": q, "cos": cos, "sin": sin}
    names = strobe._appended.TENSOR_NAMES
    arguments = (k, v, *new, lengths, q.clone(), *(tensors.get(name) for name in names), False, True, 0, "automatic")
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.strobe.append.default, arguments, test_utils=checks)
    k8, v8, k_scales, v_scales, lengths, _, new = inputs_in_8_bits()
    tensors = {"k_row_descale": k_scales, "v_row_descale": v_scales}
    arguments = (k8, v8, *new, lengths, None, *(tensors.get(name) for name in names), False, True, 0, "automatic")
    torch.library.opcheck(torch.ops.strobe.append.default, arguments, test_utils=checks)
    options = strobe.torch.ops.arguments_of(q, {"page_table": table}, strobe.torch.graphs._ATTENTION)
    arguments = (q, k, v, out, None, None, *options)
    torch.library.opcheck(torch.ops.strobe.attention_into.default, arguments, test_utils=checks)


def test_what_is_saved_for_a_gradient_is_not_overwritten():
    x = draw(BATCH, 4, HEADS, HEAD_DIM).requires_grad_()
    kept = x * 2
    loss = (kept * kept).sum()
    with torch.no_grad():
        compiled(lambda q, out: strobe.attention(q, q, q, out=out))(draw(BATCH, 4, HEADS, HEAD_DIM), kept.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_messages_call_outputs_by_their_names():
    x = draw(BATCH, 4, HEADS, HEAD_DIM)
    with pytest.raises(ValueError, match=r"^out has shape .* it must be"):
        torch.compile(lambda q, out: strobe.attention(q, q, q, out=out), backend="eager")(x, x[..., :8].clone())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stream": 0}, NotImplementedError, "stream is given in a compiled graph"),
        ({"softmax_scale": 1.0}, TypeError, "softmax_scale is no option of strobe.attention"),
        ({"page_table": [1]}, TypeError, "page_table is of type list"),
    ],
)
def test_errors(options, error, message):
    torch._dynamo.reset()
    x = draw(BATCH, 4, HEADS, HEAD_DIM)
    with pytest.raises(error, match=message):
        torch.compile(lambda: strobe.attention(x, x, x, **options), backend="aot_eager")()


def test_tensors_that_require_a_gradient():
    torch._dynamo.reset()
    x = draw(BATCH, 4, HEADS, HEAD_DIM).requires_grad_()
    with pytest.raises(ValueError, match=r"which strobe\.attention does not record"):
        torch.compile(lambda: strobe.attention(x, x, x), backend="aot_eager")()
