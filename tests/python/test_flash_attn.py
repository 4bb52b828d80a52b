# SPDX-License-Identifier: Apache-2.0
"""The drop-ins: FlashAttention's signatures and return values, on Strobe."""

import inspect

import flash_attn
import flash_attn_interface
import pytest
import strobe
import torch
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.layers.rotary import apply_rotary_emb

TAIL_3 = (
    "softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), "
    "attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, "
    "return_attn_probs=False"
)
TAIL_2 = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SIGNATURES = [
    (flash_attn_interface.flash_attn_func, f"q, k, v, {TAIL_3}"),
    (flash_attn_interface.flash_attn_varlen_func, f"q, k, v, {LENGTHS}, seqused_q=None, seqused_k=None, {TAIL_3}"),
    (
        flash_attn_interface.flash_attn_with_kvcache,
        "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
        "max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, "
        "causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
        "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False",
    ),
    (flash_attn_interface.flash_attn_combine, "out_partial, lse_partial, out=None, out_dtype=None"),
    (flash_attn.flash_attn_func, f"q, k, v, {TAIL_2}"),
    (flash_attn.flash_attn_varlen_func, f"q, k, v, {LENGTHS}, {TAIL_2}, block_table=None"),
]


@pytest.mark.parametrize(("function", "expected"), SIGNATURES)
def test_signature(function, expected):
    parameters = inspect.signature(function).parameters.values()
    found = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
    assert found == expected


def test_version_is_the_interfaces():
    assert flash_attn.__version__ == f"2.8.4+strobe.{strobe.__version__}"


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    shapes = ((2, 12, 4, 16), (2, 20, 2, 16), (2, 20, 2, 16))
    return [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("module", [flash_attn, flash_attn_interface])
def test_dense(module, qkv):
    window = torch.tensor([5, -1])
    out, lse, *rest = module.flash_attn_func(*qkv, causal=True, window_size=window, softcap=3.0, return_attn_probs=True)
    assert rest == ([None] if module is flash_attn else [])
    wanted, wanted_lse = strobe.torch.attention(*qkv, causal=True, window=(5, -1), softcap=3.0, return_lse=True)
    assert torch.equal(out, wanted)
    assert torch.equal(lse, wanted_lse)
    assert torch.equal(module.flash_attn_func(*qkv), strobe.torch.attention(*qkv))
    out.sum().backward()
    assert all(x.grad is not None for x in qkv)


def test_packed_variants(qkv):
    q, k, v = (x.detach()[:, :, :2] for x in qkv)
    kv = torch.stack([k, v], dim=2)
    wanted = strobe.torch.attention(q, k, v)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, kv), wanted)
    same = torch.stack([k, k, v], dim=2)
    wanted = strobe.torch.attention(k, k, v, causal=True)
    assert torch.equal(flash_attn.flash_attn_qkvpacked_func(same, causal=True), wanted)
    assert torch.equal(flash_attn_interface.flash_attn_qkvpacked_func(same, causal=True), wanted)
    heads = torch.cat([k, k, v], dim=2)
    assert torch.equal(flash_attn_interface.flash_attn_qkvpacked_func(heads, causal=True, num_heads_q=2), wanted)


@pytest.mark.parametrize("module", [flash_attn, flash_attn_interface])
def test_varlen(module, qkv):
    q, k, v = (x.detach()[:, :12] for x in qkv)
    mask = torch.arange(12)[None] < torch.tensor([[7], [12]])
    q_packed, indices, cu_seqlens, longest, used = unpad_input(q, mask)
    k_packed, v_packed = (unpad_input(x, mask)[0] for x in (k, v))
    assert cu_seqlens.tolist() == [0, 7, 19]
    assert used.tolist() == [7, 12]
    lengths = (cu_seqlens, cu_seqlens, longest, longest)
    out, lse, *_ = module.flash_attn_varlen_func(
        q_packed, k_packed, v_packed, *lengths, causal=True, return_attn_probs=True
    )
    assert lse.shape == (4, 19)
    padded = pad_input(out, indices, 2, 12)
    wanted = strobe.torch.attention(q, k, v, causal=True, seqused_q=used, seqused_k=used)
    assert torch.equal(padded, wanted)


def gradients_of(call, tensors, d_o):
    return torch.autograd.grad(call(*tensors), tensors, d_o)


@pytest.mark.parametrize("packed", [False, True])
def test_passes_beneath_the_functions(packed, qkv):
    """Both libraries' forward and backward by themselves, as ring attention calls them: what autograd gives."""
    below = flash_attn.flash_attn_interface
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    lengths = ()
    if packed:
        qkv = [x.detach().flatten(0, 1).requires_grad_() for x in qkv]
        bounds = (torch.tensor([0, 12, 24], dtype=torch.int32), torch.tensor([0, 20, 40], dtype=torch.int32))
        lengths = (*bounds, 12, 20)
    options = {"causal": True, "window": (7, -1), "softcap": 3.0, "scale": 0.3}

    def attention(*x):
        return strobe.torch.attention(*x, **options, **dict(zip(names, lengths, strict=False)))

    d_o = torch.randn_like(qkv[0]).transpose(-1, -2).contiguous().transpose(-1, -2)  # of another stride
    wanted = gradients_of(attention, qkv, d_o)
    forward_2 = below._flash_attn_varlen_forward if packed else below._flash_attn_forward
    backward_2 = below._flash_attn_varlen_backward if packed else below._flash_attn_backward
    settings = (0.0, 0.3, True, 7, -1, 3.0, None)
    out, lse, probabilities, rng_state = forward_2(*qkv, *lengths, *settings, False)
    assert torch.equal(out, attention(*qkv))
    assert not out.requires_grad
    assert probabilities.numel() == 0
    assert rng_state.shape == (2,)
    found = [torch.full_like(x, torch.nan) for x in qkv]
    backward_2(d_o, *qkv, out, lse, *found, *lengths, *settings, False)
    assert all(map(torch.equal, found, wanted))
    arguments = {"softmax_scale": 0.3, "window_size_left": 7, "softcap": 3.0}
    given = dict(zip(names, lengths, strict=False))
    out_3, lse_3, *_ = flash_attn_interface._flash_attn_forward(*qkv, causal=True, **arguments, **given)
    assert all(map(torch.equal, torch.autograd.grad(out_3, qkv, d_o), wanted))
    assert torch.equal(lse_3, lse)
    into = torch.full_like(out, torch.nan)
    assert flash_attn_interface._flash_attn_forward(*qkv, out_=into, causal=True, **arguments, **given)[0] is into
    assert torch.equal(into, out)
    found = dict(zip(("dq", "dk", "dv"), (torch.full_like(x, torch.nan) for x in qkv), strict=True))
    flash_attn_interface._flash_attn_backward(d_o, *qkv, out, lse, is_causal=True, **arguments, **given, **found)
    assert all(map(torch.equal, found.values(), wanted))


def test_the_backward_beneath_drops_what_the_forward_dropped(qkv):
    below = flash_attn.flash_attn_interface
    q, k, v = (x.detach().float().requires_grad_() for x in qkv)
    settings = (0.25, None, True, -1, -1, 0.0, None)
    out, lse, signed, rng_state = below._flash_attn_forward(q, k, v, *settings, True)
    assert (signed < 0).any()
    state = rng_state.view(torch.int32)
    again = strobe.torch.attention(q, k, v, causal=True, dropout=0.25, random_state=state)
    assert torch.equal(out, again)
    d_o = torch.randn_like(out)
    found = [torch.empty_like(x) for x in (q, k, v)]
    below._flash_attn_backward(d_o, q, k, v, out, lse, *found, *settings, False, rng_state)
    assert all(map(torch.equal, found, torch.autograd.grad(again, (q, k, v), d_o)))
    with pytest.raises(ValueError, match="rng_state is None"):
        below._flash_attn_backward(d_o, q, k, v, out, lse, *found, *settings, False)


def test_probabilities_tell_what_dropout_took(qkv):
    q, k, v = (x.detach().float() for x in qkv)
    slopes = torch.tensor([[0.0, 0.1, 0.2, 0.3], [0.3, 0.2, 0.1, 0.0]])
    options = {"causal": True, "alibi_slopes": slopes, "return_attn_probs": True}
    out, _, signed = flash_attn.flash_attn_func(q, k, v, 0.25, **options)
    assert signed.shape == (2, 4, 128, 128)
    signed = signed[:, :, :12, :20]
    p = signed.abs() / signed.abs().sum(-1, keepdim=True)
    kept = torch.where(signed > 0, p / 0.75, 0)
    wanted = torch.einsum("bhqk,bkhd->bqhd", kept, v.repeat_interleave(2, dim=2))
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    assert 0.15 < (signed < 0).sum() / (signed != 0).sum() < 0.35
    bounds_q, bounds_k = torch.tensor([0, 12, 24], dtype=torch.int32), torch.tensor([0, 20, 40], dtype=torch.int32)
    packed = (x.flatten(0, 1) for x in (q, k, v))
    out, _, signed = flash_attn.flash_attn_varlen_func(*packed, bounds_q, bounds_k, 12, 20, 0.25, **options)
    kept = torch.where(signed[:, :, :12, :20] > 0, p / 0.75, 0)
    wanted = torch.einsum("bhqk,bkhd->bqhd", kept, v.repeat_interleave(2, dim=2))
    torch.testing.assert_close(out.unflatten(0, (2, 12)), wanted, rtol=1e-5, atol=1e-5)


def test_cache(qkv):
    q, k_cache, v_cache = (x.detach().clone() for x in qkv)
    lengths = torch.tensor([3, 15], dtype=torch.int32)
    k, v = torch.randn(2, 2, 5, 2, 16, dtype=torch.bfloat16).unbind(0)
    full = [x.clone() for x in (k_cache, v_cache)]
    for cache, new in zip(full, (k, v), strict=True):
        for row, length in enumerate(lengths):
            cache[row, length : length + 5] = new[row]
    wanted = strobe.torch.attention(q[:, :5], *full, causal=True, seqused_k=lengths + 5, return_lse=True)
    for module in (flash_attn, flash_attn_interface):
        caches = [k_cache.clone(), v_cache.clone()]
        out, lse, *rest = module.flash_attn_with_kvcache(
            q[:, :5], *caches, k, v, cache_seqlens=lengths, causal=True, return_softmax_lse=True
        )
        assert rest == ([] if module is flash_attn else [None, None])
        assert torch.equal(out, wanted[0])
        assert torch.equal(lse, wanted[1])
        assert all(torch.equal(a, b) for a, b in zip(caches, full, strict=True))
    swapped = flash_attn.flash_attn_with_kvcache(
        q[:, :5], *full, cache_seqlens=(lengths + 5).flip(0), cache_batch_idx=torch.tensor([1, 0]).int(), causal=True
    )
    other_way = strobe.torch.attention(
        q[:, :5], *(x.flip(0) for x in full), causal=True, seqused_k=(lengths + 5).flip(0)
    )
    assert torch.equal(swapped, other_way)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(qkv, interleaved):
    """A rotation by the position, as complex numbers say it; the cache rotates what is new."""
    q, cache, _ = (x.detach().float() for x in qkv)
    angles = torch.outer(torch.arange(64.0), 10000.0 ** -(torch.arange(4) / 4))
    cos, sin = angles.cos(), angles.sin()
    turned = apply_rotary_emb(q, cos, sin, interleaved=interleaved, seqlen_offsets=torch.tensor([2, 9]))
    pairs = q[..., :8].unflatten(-1, (4, 2)) if interleaved else torch.stack(q[..., :8].chunk(2, -1), -1)
    positions = torch.tensor([[2], [9]]) + torch.arange(12)
    wanted = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles[positions])[:, :, None]
    parts = torch.view_as_real(wanted)
    wanted = parts.flatten(-2) if interleaved else torch.cat(parts.unbind(-1), -1)
    torch.testing.assert_close(turned, torch.cat([wanted, q[..., 8:]], -1))
    lengths = torch.tensor([2, 9], dtype=torch.int32)
    k, v = torch.randn(2, 2, 3, 2, 16).unbind(0)
    turned_k = apply_rotary_emb(k, cos, sin, interleaved=interleaved, seqlen_offsets=lengths)
    for causal in (True, False):
        # Without a mask along the diagonal every query is at the position of the first new key.
        turned_q = (
            turned[:, :3]
            if causal
            else torch.cat(
                [apply_rotary_emb(q[:, i : i + 1], cos, sin, interleaved, seqlen_offsets=lengths) for i in range(3)], 1
            )
        )
        given = {"cache_seqlens": lengths, "causal": causal}
        wanted = flash_attn.flash_attn_with_kvcache(turned_q, cache.clone(), cache.clone(), turned_k, v, **given)
        given |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
        out = flash_attn.flash_attn_with_kvcache(q[:, :3], cache.clone(), cache.clone(), k, v, **given)
        torch.testing.assert_close(out, wanted, rtol=1e-6, atol=1e-6)


def test_combine(qkv):
    q, k, v = (x.detach().float() for x in qkv)
    wanted, wanted_lse = strobe.torch.attention(q, k, v, return_lse=True)
    halves = [strobe.torch.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 9), slice(9, 20))]
    out, lse = flash_attn_interface.flash_attn_combine(
        torch.stack([o for o, _ in halves]), torch.stack([lse.transpose(1, 2) for _, lse in halves])
    )
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.transpose(1, 2), wanted_lse, rtol=1e-5, atol=1e-5)
    assert flash_attn_interface.get_scheduler_metadata() is None


def test_what_is_missing_is_said(qkv):
    q, k, v = (x.detach() for x in qkv)
    ones = torch.ones(2, 2)
    table = torch.zeros(2, 1, dtype=torch.int32)
    for message, call in {
        "qv is given with float8_e4m3fn q": lambda: flash_attn_interface.flash_attn_func(
            *(x.to(torch.float8_e4m3fn) for x in (q, k, v)), qv=q
        ),
        "leftpad_k is given without block_table": lambda: flash_attn.flash_attn_interface._flash_attn_varlen_forward(
            *(q, k, v, ones, ones, 1, 1, 0.0, None, False), leftpad_k=table
        ),
        "flash_attn_gpu.fwd was called, but": lambda: flash_attn.flash_attn_interface.flash_attn_gpu.fwd(q, k, v),
        "leftpad_k is given, but no": lambda: flash_attn_interface._flash_attn_forward(q, k, v, leftpad_k=table),
    }.items():
        with pytest.raises(NotImplementedError, match=message):
            call()


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (20, 3)}])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_float8(options, heads_kv):
    """FlashAttention-3's float8 call against the same numbers in float32."""
    torch.manual_seed(heads_kv)
    tensors = [torch.randn(2, rows, heads, 64) for rows, heads in ((90, 4), (75, heads_kv), (75, heads_kv))]
    descales = [0.5 + torch.rand(2, heads_kv) for _ in range(3)]
    eighths = [x.to(torch.float8_e4m3fn) for x in tensors]
    scales = dict(zip(("q_descale", "k_descale", "v_descale"), descales, strict=True))
    out, lse = flash_attn_interface.flash_attn_func(*eighths, return_attn_probs=True, **scales, **options)
    assert out.dtype == torch.bfloat16
    by_head = [
        scale.repeat_interleave(x.shape[2] // heads_kv, 1)[:, None, :, None]
        for x, scale in zip(tensors, descales, strict=True)
    ]
    widened = [x.float() * scale for x, scale in zip(eighths, by_head, strict=True)]
    wanted, wanted_lse = flash_attn_interface.flash_attn_func(*widened, return_attn_probs=True, **options)
    # Probabilities in e4m3 are off by 1/16 at most and by 2.6% in root mean square, and so is a sum of random values.
    assert (out - wanted).square().mean().sqrt() < 0.03 * wanted.square().mean().sqrt()
    assert ((out - wanted).abs() <= widened[2].abs().amax() / 15).all()
    torch.testing.assert_close(lse, wanted_lse, atol=1e-3, rtol=1e-4)
    assert flash_attn_interface.flash_attn_func(*eighths).shape == (2, 90, 4, 64)


def test_scales_belong_to_float8(qkv):
    q, k, v = (x.detach() for x in qkv)
    with pytest.raises(ValueError, match=r"k_descale is given, but q is torch\.bfloat16: it belongs to float8_e4m3fn"):
        flash_attn_interface.flash_attn_func(*(x.bfloat16() for x in (q, k, v)), k_descale=torch.ones(2, 2))
    bounds = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"v_descale is given, but q is torch\.bfloat16: it belongs to float8_e4m3fn"):
        flash_attn_interface.flash_attn_varlen_func(*(q[0], k[0], v[0]), *(bounds, bounds, 3, 3), v_descale=bounds)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (20, 3)}])
@pytest.mark.parametrize("used", [False, True])
def test_packed_float8(options, used):
    """Every sequence of FlashAttention-3's packed float8 call has the bits of a call on it alone."""
    torch.manual_seed(1)
    rows_q, rows_k, heads_kv = (70, 0, 1, 40), (33, 20, 64, 75), 2
    q = torch.randn(sum(rows_q), 4, 64).to(torch.float8_e4m3fn)
    k, v = (torch.randn(sum(rows_k) + 5, heads_kv, 64).to(torch.float8_e4m3fn) for _ in range(2))
    bounds = [torch.tensor([0, *rows]).cumsum(0).int() for rows in (rows_q, rows_k)]
    scales = {f"{name}_descale": 0.5 + torch.rand(4, heads_kv) for name in "qkv"}
    lengths = {"seqused_k": torch.tensor([30, 0, 64, 40], dtype=torch.int32)} if used else {}
    out, lse = flash_attn_interface.flash_attn_varlen_func(
        *(q, k, v), *bounds, 70, 75, return_attn_probs=True, **scales, **lengths, **options
    )
    assert out.dtype == torch.bfloat16
    for b in range(4):
        own_q, own_k = (slice(bound[b], bound[b + 1]) for bound in bounds)
        own_k = slice(own_k.start, own_k.start + int(lengths["seqused_k"][b])) if used else own_k
        alone, alone_lse = flash_attn_interface.flash_attn_func(
            *(q[None, own_q], k[None, own_k], v[None, own_k]),
            return_attn_probs=True,
            **{name: scale[b : b + 1] for name, scale in scales.items()},
            **options,
        )
        assert torch.equal(out[own_q], alone[0])
        assert torch.equal(lse[:, own_q], alone_lse[0])


def test_caches_in_8_bits():
    """A float8 cache beside a bfloat16 q: as on converted tensors, with scales of a batch entry and head."""
    torch.manual_seed(5)
    q = torch.randn(2, 3, 4, 32).bfloat16()
    caches = [torch.randn(2, 60, 2, 32).to(torch.float8_e4m3fn) for _ in range(2)]
    scales = [0.5 + torch.rand(2, 2) for _ in range(2)]
    wide = [(x.float() * scale[:, None, :, None]).bfloat16() for x, scale in zip(caches, scales, strict=True)]
    lengths = torch.tensor([40, 60], dtype=torch.int32)
    call = flash_attn_interface.flash_attn_with_kvcache
    expected = call(q, *wide, cache_seqlens=lengths, causal=True)
    out = call(q, *caches, cache_seqlens=lengths, causal=True, k_descale=scales[0], v_descale=scales[1])
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


def test_rotary_tables_in_8_bits():
    torch.manual_seed(2)
    q, new_k, new_v = (torch.randn(1, 1, 2, 32).bfloat16() for _ in range(3))
    angles = torch.rand(8, 32 // 2)
    tables = [table.to(torch.float8_e4m3fn) for table in (angles.cos(), angles.sin())]
    results = []
    for cos, sin in (tables, [table.float() for table in tables]):
        caches = [torch.zeros(1, 8, 2, 32, dtype=torch.bfloat16) for _ in "kv"]
        out = flash_attn_interface.flash_attn_with_kvcache(
            q, *caches, new_k, new_v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=3
        )
        results.append((out, *caches))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert not torch.equal(results[0][1][:, 3], new_k[:, 0])
