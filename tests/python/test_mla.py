# SPDX-License-Identifier: Apache-2.0
"""strobe.mla, and calls with qv, against the equations in float64: contiguous, packed and paged caches."""

import ml_dtypes
import numpy as np
import pytest
import strobe
import strobe.torch
import torch

LATENT, ROPE = 512, 64
SCALE = 192**-0.5
UNIT = {np.float32: 2.0**-24, np.float16: 2.0**-11, ml_dtypes.bfloat16: 2.0**-8}


def tensors(batch, seqlen_q, seqlen_k, heads, dtype=np.float32, latent=LATENT, rope=ROPE, seed=1):
    generator = np.random.default_rng(seed)
    shapes = (batch, seqlen_q, heads, latent), (batch, seqlen_q, heads, rope), (batch, seqlen_k, latent + rope)
    return [generator.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def exact(q_latent, q_rope, cache, lengths=None, scale=SCALE, causal=True):
    """out and lse in float64, and sum_j P_j |v_j|; keys from lengths[b] on are not there."""
    q_latent, q_rope, cache = (np.asarray(x, np.float64) for x in (q_latent, q_rope, cache))
    latent, (batch, sq, heads, _) = q_latent.shape[-1], q_latent.shape
    o, lse, magnitude = np.zeros(q_latent.shape), np.zeros((batch, heads, sq)), np.zeros(q_latent.shape)
    for b in range(batch):
        rows = cache[b, : cache.shape[1] if lengths is None else lengths[b]]
        q = np.concatenate([q_latent[b], q_rope[b]], axis=-1)
        s = np.einsum("qhd,kd->hqk", q, rows) * scale
        if causal:
            center = np.arange(sq)[:, None] + len(rows) - sq
            s = np.where(np.arange(len(rows)) <= center, s, -np.inf)
        top = s.max(-1, keepdims=True)
        p = np.exp(s - top)
        lse[b] = (np.log(p.sum(-1, keepdims=True)) + top)[..., 0]
        p /= p.sum(-1, keepdims=True)
        o[b] = np.einsum("hqk,kd->qhd", p, rows[:, :latent])
        magnitude[b] = np.einsum("hqk,kd->qhd", p, abs(rows[:, :latent]))
    return o, lse, magnitude


def check(out, lse, wanted, dtype, keys, columns=LATENT + ROPE):
    """The roundings of sums of `columns` and of `keys` products (docs/accuracy.md), with scores of at most 16."""
    o, exact_lse, magnitude = wanted
    float32 = 4 * (columns + keys) * 16 * 2.0**-24
    # bfloat16 kernels round P, too.
    assert (abs(np.asarray(out, np.float64) - o) <= (float32 + 2 * UNIT[dtype]) * magnitude + 1e-6).all()
    assert (abs(np.asarray(lse, np.float64) - exact_lse) <= float32).all()


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("heads", [8, 16, 128])
@pytest.mark.parametrize("seqlen_q", [1, 3, 40])
def test_contiguous(dtype, heads, seqlen_q):
    q_latent, q_rope, cache = tensors(2, seqlen_q, 70, heads, dtype)
    out, lse = strobe.mla(q_latent, q_rope, cache, scale=SCALE, causal=True, return_lse=True)
    assert out.shape == q_latent.shape
    assert out.dtype == dtype
    check(out, lse, exact(q_latent, q_rope, cache), dtype, 70)


@pytest.mark.parametrize("seqlen_q", [1, 5])
def test_pages(seqlen_q):
    """Rows that hold no token are NaN."""
    q_latent, q_rope, cache = tensors(3, seqlen_q, 48, 16)
    lengths = np.array([48, 17, 30], np.int32)
    pages = np.full((10, 16, LATENT + ROPE), np.nan, np.float32)
    table = np.random.default_rng(2).permutation(9).astype(np.int32).reshape(3, 3)
    for b, length in enumerate(lengths):
        for row in range(length):
            pages[table[b, row // 16], row % 16] = cache[b, row]
    options = {"page_table": table, "seqused_k": lengths, "causal": True, "return_lse": True}
    out, lse = strobe.mla(q_latent, q_rope, pages, scale=SCALE, **options)
    check(out, lse, exact(q_latent, q_rope, cache, lengths), np.float32, 48)
    with_head_axis = strobe.mla(q_latent, q_rope, pages[:, :, None], scale=SCALE, **options)
    np.testing.assert_array_equal(with_head_axis[0], out)


def test_packed():
    q_latent, q_rope, cache = tensors(2, 6, 20, 8)
    cu_seqlens_q, cu_seqlens_k = (np.array([0, n, 2 * n], np.int32) for n in (6, 20))
    packed = [x.reshape(-1, *x.shape[2:]) for x in (q_latent, q_rope, cache)]
    out = strobe.mla(*packed, scale=SCALE, causal=True, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    np.testing.assert_array_equal(out, strobe.mla(q_latent, q_rope, cache, scale=SCALE, causal=True).reshape(out.shape))


def test_a_decoded_row_has_the_bits_of_the_prompt():
    q_latent, q_rope, cache = tensors(1, 90, 90, 16)
    options = {"scale": SCALE, "causal": True, "row_invariant": True}
    prompt = strobe.mla(q_latent, q_rope, cache, **options)
    for row in (0, 1, 63, 64, 89):
        alone = strobe.mla(*(x[:, row : row + 1] for x in (q_latent, q_rope)), cache[:, : row + 1], **options)
        np.testing.assert_array_equal(alone[:, 0], prompt[:, row])


def test_torch_reads_the_cache_in_place():
    """The cache is a view with rows of other tensors between its own; k and v overlap in it."""
    q_latent, q_rope, cache = (torch.from_numpy(x) for x in tensors(2, 4, 33, 8))
    wide = torch.full((2, 66, LATENT + ROPE + 7), torch.nan)
    view = wide[:, ::2, : LATENT + ROPE].copy_(cache)
    out = torch.empty(2, 4, 8, LATENT)
    given = strobe.mla(q_latent, q_rope, view, scale=SCALE, causal=True, out=out)
    assert given is out
    assert torch.equal(out, strobe.mla(q_latent, q_rope, cache, scale=SCALE, causal=True))
    plain = strobe.attention(
        torch.cat([q_latent, q_rope], -1), view[:, :, None], view[:, :, None, :LATENT], scale=SCALE, causal=True
    )
    assert torch.equal(out, plain)


@pytest.mark.parametrize("element", [torch.int8, torch.float8_e4m3fn])
def test_a_cache_in_8_bits(element):
    """The bits of a call on the rows that the elements stand for."""
    q_latent, q_rope, cache = (torch.from_numpy(x).bfloat16() for x in tensors(2, 2, 40, 8))
    largest = 127 if element == torch.int8 else 448
    scales = (cache.float().abs().amax(-1) / largest).unsqueeze(1)
    rows = cache.float() / scales.squeeze(1)[..., None]
    stored = (rows.round() if element == torch.int8 else rows).to(element)
    wide = (stored.float() * scales.squeeze(1)[..., None]).bfloat16()
    out = strobe.mla(q_latent, q_rope, stored, scale=SCALE, causal=True, k_descale=scales)
    assert torch.equal(out, strobe.mla(q_latent, q_rope, wide, scale=SCALE, causal=True))


def test_the_same_by_qv():
    """q and k as the rotated parts, qv and v as the latent ones: nothing is joined."""
    q_latent, q_rope, cache = tensors(2, 5, 60, 16)
    k, v = cache[:, :, None, LATENT:], cache[:, :, None, :LATENT]
    out, lse = strobe.attention(q_rope, k, v, qv=q_latent, scale=SCALE, causal=True, return_lse=True)
    check(out, lse, exact(q_latent, q_rope, cache), np.float32, 60)


def test_explain_takes_the_shape_of_qv():
    shapes = {"q": (2, 5, 16, ROPE), "k": (2, 60, 1, ROPE), "v": (2, 60, 1, LATENT)}
    qv = (2, 5, 16, LATENT)
    for backward in (False, True):
        plan = strobe.explain(**shapes, qv=qv, backward=backward)
        assert "qv            its products with V join those of Q with K" in plan
        assert plan == strobe.explain(
            **{name: np.zeros(shape, np.float32) for name, shape in shapes.items()},
            qv=np.zeros(qv, np.float32),
            backward=backward,
        )
    assert "qv  " not in strobe.explain(**shapes)
    with pytest.raises(ValueError, match=r"qv has shape \[2, 5, 16, 64\]: it must be \[2, 5, 16, 512\]"):
        strobe.explain(**shapes, qv=shapes["q"])
    with pytest.raises(TypeError, match="qv is of type list"):
        strobe.explain(**shapes, qv=[1.0])


def test_misuse():
    q_latent, q_rope, cache = tensors(1, 2, 4, 8)

    def message(error, *arguments, **options):
        with pytest.raises(error) as raised:
            strobe.mla(*arguments, **{"scale": SCALE} | options)
        return str(raised.value)

    assert "scale is not given: it is that of the heads before" in message(
        ValueError, q_latent, q_rope, cache, scale=None
    )
    assert "q_latent has shape (1, 2, 8, 512) and q_rope (1, 2, 4, 64)" in message(
        ValueError, q_latent, q_rope[:, :, :4], cache
    )
    assert "cache has shape (1, 4, 512): it must be [.., rows, 576]" in message(
        ValueError, q_latent, q_rope, cache[..., :512]
    )
    assert "q_rope is float16: it must be float32, as q_latent is" in message(
        ValueError, q_latent, q_rope.astype(np.float16), cache
    )
    assert "qv is given: q_latent is what it would be" in message(ValueError, q_latent, q_rope, cache, qv=q_latent)
    assert "q_rope is of type list: it must be a tensor" in message(TypeError, q_latent, [1.0], cache)
    assert "no_option is no option" in message(TypeError, q_latent, q_rope, cache, no_option=1)


def leaves(*shapes):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("return_lse", [False, True])
def test_gradients_of_qv(return_lse):
    """Those of the same call on joined columns, which PyTorch's tape splits again."""
    q, k, v, qv = tensors_ = leaves((2, 7, 4, 16), (2, 9, 2, 16), (2, 9, 2, 24), (2, 7, 4, 24))
    d_o, d_lse = torch.randn(2, 7, 4, 24), torch.randn(2, 4, 7)

    def gradients(result):
        out, lse = result if return_lse else (result, None)
        loss = (out * d_o).sum() + ((lse * d_lse).sum() if return_lse else 0)
        return torch.autograd.grad(loss, tensors_)

    options = {"causal": True, "softcap": 3.0, "scale": 0.2, "return_lse": return_lse}
    own = gradients(strobe.torch.attention(q, k, v, qv=qv, **options))
    joined = gradients(strobe.torch.attention(torch.cat([q, qv], -1), torch.cat([k, v], -1), v, **options))
    for one, other in zip(own, joined, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
    o, lse = strobe.attention(*(x.detach() for x in (q, k, v)), qv=qv.detach(), **options | {"return_lse": True})
    others = {} if not return_lse else {"d_lse": d_lse}
    del options["return_lse"]
    called = strobe.attention_backward(
        d_o, *(x.detach() for x in (q, k, v)), o, lse, qv=qv.detach(), **others, **options
    )
    for one, other in zip((own[0], own[1], own[2], own[3]), called, strict=True):
        assert torch.equal(one, other)


def test_misuse_of_qv():
    q, k, v, qv = leaves((1, 3, 2, 8), (1, 4, 2, 8), (1, 4, 2, 6), (1, 3, 2, 6))
    attention = strobe.torch.attention
    with pytest.raises(ValueError, match=r"qv has shape \[1, 3, 2, 8\]: it must be \[1, 3, 2, 6\]"):
        attention(q, k, v, qv=q)
    with pytest.raises(ValueError, match="qv requires a gradient, which"):
        strobe.attention(q.detach(), k.detach(), v.detach(), qv=qv)
    with pytest.raises(TypeError, match="qv is of type list"):
        attention(q, k, v, qv=[1.0])
    with pytest.raises(NotImplementedError, match="no compiler, transform or mode"):
        torch.func.vjp(lambda x: attention(q, k, v, qv=x), qv)
    with pytest.raises(NotImplementedError, match="qv is given with a tensor as scale: give a number"):
        attention(q, k, v, qv=qv, scale=torch.tensor(0.5))
    with pytest.raises(NotImplementedError, match="qv is given and sink requires a gradient: detach it"):
        attention(q, k, v, qv=qv, sink=torch.zeros(2, requires_grad=True))


def test_compiled_graphs_take_qv_and_mla():
    q, k, v, qv = (x.detach() for x in leaves((1, 3, 2, 8), (1, 4, 2, 8), (1, 4, 2, 6), (1, 3, 2, 6)))

    def attend(q, k, v, qv):
        return strobe.attention(q, k, v, qv=qv, causal=True)

    torch.testing.assert_close(
        torch.compile(attend, backend="aot_eager", fullgraph=True)(q, k, v, qv), attend(q, k, v, qv)
    )

    def absorb(q_latent, q_rope, cache):
        return strobe.mla(q_latent, q_rope, cache, scale=0.25)

    rows = torch.cat([v, k], dim=-1)[:, :, 0]
    torch.testing.assert_close(
        torch.compile(absorb, backend="aot_eager", fullgraph=True)(qv, q, rows), absorb(qv, q, rows)
    )
