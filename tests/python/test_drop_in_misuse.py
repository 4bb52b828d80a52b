# SPDX-License-Identifier: Apache-2.0
"""What FlashAttention refuses the drop-ins refuse, and what they compute beside it is right.

Nothing that is given is ignored, no number is converted, and nothing is written before the error.
"""

import flash_attn
import flash_attn_interface
import numpy as np
import pytest
import reference
import strobe
import torch
from flash_attn import flash_attn_interface as flash_attn_2
from strobe.integrations import vllm

MODULES = [flash_attn, flash_attn_interface]
TABLES = {flash_attn: "block_table", flash_attn_interface: "page_table"}
E4M3 = torch.float8_e4m3fn


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def refused(error, message, call, *arguments, **options):
    """Of a call that leaves every tensor as it was."""
    tensors = [x for x in (*arguments, *options.values()) if isinstance(x, torch.Tensor)]
    before = [x.clone() for x in tensors]
    with pytest.raises(error, match=message):
        call(*arguments, **options)
    for tensor, copy in zip(tensors, before, strict=True):
        assert torch.equal(*(x.flatten().contiguous().view(torch.uint8) for x in (tensor, copy)))


Q, NEW = draw(2, 1, 4, 16), draw(2, 1, 2, 16)
CACHE = {"k_cache": draw(2, 32, 2, 16), "v_cache": draw(2, 32, 2, 16)}
PAGES = {"k_cache": draw(8, 16, 2, 16), "v_cache": draw(8, 16, 2, 16)}
TABLE = int32(0, 1, 2, 3).view(2, 2)
USED = {"cache_seqlens": int32(3, 3)}
APPENDED = {"k": NEW, "v": NEW, **USED}
ROTARY = {"rotary_cos": draw(32, 8), "rotary_sin": draw(32, 8)}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": NEW, **USED}, ValueError, "k is given without v"),
        ({"v": NEW, **USED}, ValueError, "v is given without k"),
        ({"k": NEW, "v": NEW}, ValueError, "k is given without cache_seqlens"),
        (APPENDED | {"rotary_cos": ROTARY["rotary_cos"]}, ValueError, "rotary_cos is given without rotary_sin"),
        (APPENDED | {"rotary_sin": ROTARY["rotary_sin"]}, ValueError, "rotary_sin is given without rotary_cos"),
        (USED | ROTARY, ValueError, "rotary_cos is given without k and v"),
        (APPENDED | {"k": NEW.half(), "v": NEW.half()}, ValueError, "k is float16: it must be float32, as q is"),
        (APPENDED | {"v": NEW.half()}, ValueError, "v is float16: it must be float32, as q is"),
        (APPENDED | {"k": NEW[:, :, :1], "v": NEW[:, :, :1]}, ValueError, "heads"),
        (APPENDED | {"k": NEW[:1], "v": NEW[:1]}, ValueError, "shape|batch"),
        (APPENDED | {"rotary_cos": draw(32, 8), "rotary_sin": draw(32, 4)}, ValueError, "sin"),
        (APPENDED | {"rotary_cos": draw(32, 9), "rotary_sin": draw(32, 9)}, ValueError, "cos has 9 columns"),
        (APPENDED | {"rotary_cos": draw(32, 8), "rotary_sin": draw(32, 8).half()}, ValueError, "as rotary_cos is"),
        ({"cache_seqlens": torch.tensor([5.9])}, ValueError, "cache_seqlens is float32: it must be int32"),
        ({"cache_seqlens": torch.tensor([2**32 + 5, 3])}, ValueError, "cache_seqlens is int64: it must be int32"),
        ({"cache_seqlens": int32(3, 3, 3)}, ValueError, r"cache_seqlens has shape \[3\]: it must be \[2\] \[batch\]"),
        ({"cache_seqlens": int32(3)}, ValueError, r"cache_seqlens has shape \[1\]: it must be \[2\] \[batch\]"),
        ({"cache_seqlens": 5.9}, TypeError, "cache_seqlens is of type float: it must be an integer"),
        (USED | {"cache_batch_idx": torch.tensor([0, 1])}, ValueError, "cache_batch_idx is int64: it must be int32"),
        (USED | {"cache_leftpad": torch.tensor([0, 1])}, ValueError, "leftpad_k is int64: it must be int32"),
        (USED | {"cache_leftpad": int32(1)}, ValueError, "leftpad_k has shape"),
        (USED | {"window_size": (1.5, 2.5)}, TypeError, "window_size is of type float: it must be an integer"),
        (USED | {"window_size": (None, 0)}, TypeError, "window_size is of type NoneType: it must be an integer"),
        (USED | {"window_size": None}, TypeError, "window_size is of type NoneType: it must be a pair of integers"),
        (USED | {"window_size": 3}, TypeError, "window_size is of type int: it must be a pair of integers"),
    ],
)
def test_caches(module, options, error, message):
    refused(error, message, module.flash_attn_with_kvcache, q=Q, **CACHE, **options)


@pytest.mark.parametrize("module", MODULES)
def test_pages(module):
    call, table = module.flash_attn_with_kvcache, TABLES[module]
    refused(ValueError, "page_table is int64: it must be int32", call, Q, **PAGES, **USED, **{table: TABLE.long()})
    refused(ValueError, "page_table has rank 1", call, Q, **PAGES, **USED, **{table: TABLE[0]})
    refused(ValueError, "page_table has shape", call, Q, **PAGES, **USED, **{table: torch.cat([TABLE, TABLE])})
    short = {name: x[:31] for name, x in ROTARY.items()}
    message = "rotary_cos has 31 positions and the cache 32 rows for a sequence"
    refused(ValueError, message, call, Q, **PAGES, **APPENDED, **short, **{table: TABLE})


def test_tables_of_flash_attn_cover_every_cache():
    short = {name: x[:31] for name, x in ROTARY.items()}
    refused(ValueError, "rotary_cos has 31 pos", flash_attn.flash_attn_with_kvcache, Q, **CACHE, **APPENDED, **short)
    long_enough = flash_attn_interface.flash_attn_with_kvcache(
        Q, *(x.clone() for x in CACHE.values()), **APPENDED, **short
    )
    wanted = flash_attn.flash_attn_with_kvcache(Q, *(x.clone() for x in CACHE.values()), **APPENDED, **ROTARY)
    assert torch.equal(long_enough, wanted)


@pytest.mark.parametrize("module", MODULES)
def test_queries_beyond_the_cache(module):
    q, new = draw(2, 33, 4, 16), draw(2, 4, 2, 16)
    refused(ValueError, "q is longer than", module.flash_attn_with_kvcache, q, **CACHE, k=new, v=new, **USED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_table": TABLE, "cache_batch_idx": torch.tensor([0, 1])}, "cache_batch_idx is int64: it must be int32"),
        ({"page_table": TABLE, "cache_batch_idx": torch.tensor([0.0, 1.0])}, "cache_batch_idx is float32"),
        (APPENDED | ROTARY | {"rotary_seqlens": torch.tensor([3, 3])}, "rotary_seqlens is int64: it must be int32"),
        (APPENDED | ROTARY | {"rotary_seqlens": int32(3, 3, 3)}, r"rotary_seqlens has shape \[3\]: it must be \[2\]"),
        (APPENDED | {"k": NEW[:, 0], "v": NEW[:, 0], "cu_seqlens_k_new": torch.arange(3)}, "cu_seqlens_k_new is int64"),
        ({"q": Q[:, 0], "cu_seqlens_q": int32(0, 1, 2)}, "cu_seqlens_q is given without max_seqlen_q"),
        ({"q": Q[:, 0], "cu_seqlens_q": torch.arange(3), "max_seqlen_q": 1}, "cu_seqlens_q is int64: it must be int32"),
        ({"q": Q[:1], "cache_seqlens": int32(3)}, r"k_cache has shape \[2, 32, 2, 16\]: it must be \[1, 32, 2, 16\]"),
    ],
)
def test_caches_of_flash_attn_3(options, message):
    caches = PAGES if "page_table" in options else CACHE
    call = flash_attn_interface.flash_attn_with_kvcache
    refused(ValueError, message, call, **{"q": Q, **caches, **USED} | options)


PACKED = {"q": draw(10, 4, 16), "k": draw(10, 2, 16), "v": draw(10, 2, 16)}
BOUNDS = int32(0, 4, 10)
LENGTHS = {"cu_seqlens_q": BOUNDS, "cu_seqlens_k": BOUNDS, "max_seqlen_q": 6, "max_seqlen_k": 6}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cu_seqlens_q": BOUNDS.long()}, ValueError, "cu_seqlens_q is int64: it must be int32"),
        ({"cu_seqlens_k": BOUNDS.long()}, ValueError, "cu_seqlens_k is int64: it must be int32"),
        ({"max_seqlen_q": None}, ValueError, "cu_seqlens_q is given without max_seqlen_q"),
        ({"max_seqlen_k": None}, ValueError, "cu_seqlens_k is given without max_seqlen_k"),
        ({"max_seqlen_q": 6.9}, TypeError, "max_seqlen_q is of type float: it must be an integer"),
        ({"max_seqlen_k": "6"}, TypeError, "max_seqlen_k is of type str: it must be an integer"),
        ({"max_seqlen_k": torch.tensor(6.9)}, TypeError, "max_seqlen_k is of type Tensor: it must be an integer"),
    ],
)
def test_packed_sequences(module, options, error, message):
    refused(error, message, module.flash_attn_varlen_func, **PACKED | LENGTHS | options)


@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_k"])
def test_flash_attn_needs_cumulative_lengths(name):
    refused(ValueError, f"{name} is None", flash_attn.flash_attn_varlen_func, **PACKED | LENGTHS | {name: None})
    below = {"dropout_p": 0.0, "softmax_scale": 1.0, "causal": False}
    call = flash_attn_2._flash_attn_varlen_forward
    refused(ValueError, f"{name} is None", call, **PACKED | LENGTHS | {name: None} | below)


def test_lengths_of_pages():
    pages = {"k": PAGES["k_cache"], "v": PAGES["v_cache"], "block_table": TABLE}
    call = flash_attn.flash_attn_varlen_func
    for bounds in (torch.tensor([0, 20, 40]), torch.tensor([0, 20.5, 40.9])):
        refused(ValueError, "cu_seqlens_k is", call, **PACKED | LENGTHS | pages | {"cu_seqlens_k": bounds})
    below = PACKED | LENGTHS | pages | {"dropout_p": 0.0, "softmax_scale": 1.0, "causal": False}
    for name in ("seqused_k", "leftpad_k"):
        options = below | {name: torch.tensor([3, 3])}
        refused(ValueError, f"{name} is int64", flash_attn_2._flash_attn_varlen_forward, **options)
    of_vllm = PACKED | LENGTHS | pages | {"seqused_k": torch.tensor([3, 3])}
    refused(ValueError, "seqused_k is int64: it must be int32", vllm.flash_attn_varlen_func, **of_vllm)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_slopes_are_float32(dtype):
    slopes = torch.ones(4, dtype=dtype)
    message = "alibi_slopes is .*: it must be float32"
    x = draw(2, 4, 4, 16)
    refused(ValueError, message, flash_attn.flash_attn_func, x, x, x, alibi_slopes=slopes)
    refused(ValueError, message, flash_attn.flash_attn_with_kvcache, Q, **CACHE, alibi_slopes=slopes)


SCALES = torch.ones(2, 2)


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
@pytest.mark.parametrize(
    ("scale", "message"),
    [
        *((x, "has shape .* it must be .* heads_kv") for x in (SCALES[:1, :1], SCALES[0], SCALES[0, 0], SCALES[:, :1])),
        *((x, "has shape .* it must be .* heads_kv") for x in (torch.ones(2, 4), SCALES[..., None])),
        (SCALES.bfloat16(), "is bfloat16: it must be float32"),
    ],
)
def test_scales(name, scale, message):
    q, k, v = (draw(2, 4, heads, 16).to(E4M3) for heads in (4, 2, 2))
    options = {name: scale}
    refused(ValueError, f"{name} {message}", flash_attn_interface.flash_attn_func, q, k, v, **options)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    bounds = int32(0, 4, 8)
    call = flash_attn_interface.flash_attn_varlen_func
    refused(ValueError, f"{name} {message}", call, *packed, bounds, bounds, 4, 4, **options)
    call = flash_attn_interface.flash_attn_with_kvcache
    refused(ValueError, f"{name} {message}", call, q, k, v, cache_seqlens=4, **options)


def test_dtypes_of_8_bit_calls():
    q, k, v = (draw(2, 4, 2, 16).to(E4M3) for _ in range(3))
    call = flash_attn_interface.flash_attn_func
    refused(ValueError, "v is bfloat16: it must be float8_e4m3fn, as q is", call, q, k, v.bfloat16())
    refused(ValueError, "k is bfloat16: it must be float8_e4m3fn, as q is", call, q, k.bfloat16(), v)


def test_query_values_have_the_dtype_of_queries():
    x = draw(2, 4, 4, 16)
    refused(
        ValueError,
        "qv is bfloat16: it must be float32, as q is",
        flash_attn_interface.flash_attn_func,
        x,
        x,
        x,
        qv=x.bfloat16(),
    )


def test_tensors_side_by_side():
    x = draw(2, 4, 4, 2, 16)
    refused(ValueError, "axis 2 must have 3 elements", flash_attn.flash_attn_qkvpacked_func, x)
    refused(ValueError, "axis 2 must have 2 elements", flash_attn.flash_attn_kvpacked_func, x[:, :, 0], x)
    refused(ValueError, "axis 1 must have 3 elements", flash_attn.flash_attn_varlen_qkvpacked_func, x[0], BOUNDS, 6)
    call = flash_attn.flash_attn_varlen_kvpacked_func
    refused(ValueError, "axis 1 must have 2 elements", call, x[0, :, 0], x[0], BOUNDS, BOUNDS, 6, 6)
    refused(ValueError, "axis -3 must have 3 elements", flash_attn_interface.flash_attn_qkvpacked_func, x)
    packed = flash_attn_interface.flash_attn_qkvpacked_func
    refused(ValueError, "axis 2 must have 8 elements", packed, draw(2, 4, 9, 16), num_heads_q=4)


def test_dropout():
    x = draw(2, 4, 4, 16)
    for probability in (1.0, -0.1):
        refused(ValueError, "dropout is", flash_attn.flash_attn_func, x, x, x, probability)
    settings = (0.0, None, False, -1, -1, 0.0, None, True)
    refused(ValueError, "return_softmax is given", flash_attn_2._flash_attn_forward, x, x, x, *settings)


def test_softcap_with_dropout_is_right():
    """FlashAttention refuses the two together; here they are computed."""
    q, k, v = draw(2, 33, 4, 16), draw(2, 40, 2, 16), draw(2, 40, 2, 16)
    torch.manual_seed(3)
    out = flash_attn.flash_attn_func(q, k, v, 0.25, softcap=2.0, causal=True)
    torch.manual_seed(3)
    seed, offset = torch.randint(2**63 - 1, (2,)).tolist()
    keep = strobe.dropout_mask((2, 4, 33, 40), 0.25, seed=seed, offset=offset)
    wanted, _, _ = reference.attention(q, k, v, softcap=2.0, causal=True, dropout=0.25, keep=keep)
    np.testing.assert_allclose(out, wanted, atol=1e-5)


@pytest.mark.parametrize("module", MODULES)
def test_tables_of_float32_beside_16_bit_caches_are_right(module):
    """FlashAttention wants them in q's dtype, which these hold exactly."""
    tables = {name: x.bfloat16() for name, x in ROTARY.items()}
    caches = [[x.bfloat16() for x in CACHE.values()] for _ in range(2)]
    new = {"k": NEW.bfloat16(), "v": NEW.bfloat16(), **USED, "causal": True}
    wanted = module.flash_attn_with_kvcache(Q.bfloat16(), *caches[0], **new, **tables)
    widened = {name: x.float() for name, x in tables.items()}
    result = module.flash_attn_with_kvcache(Q.bfloat16(), *caches[1], **new, **widened)
    assert torch.equal(result, wanted)
    assert all(map(torch.equal, *caches))
