# SPDX-License-Identifier: Apache-2.0
"""Every wrong argument is rejected with one message, and the outputs stay as they were."""

import numpy as np
import pytest
import strobe

OPTIONS = ", ".join(name for name in strobe.Options.__annotations__)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def int32(*values):
    return np.array(values, np.int32)


def read_only(*shape):
    array = zeros(*shape)
    array.flags.writeable = False
    return array


SHARED = zeros(2, 8, 4, 16)

CASES = [
    (dict(q=None), ValueError, "q is missing: give a tensor [batch, seqlen_q, heads_q, head_dim]"),
    (
        dict(q=[1.0, 2.0]),
        TypeError,
        "q is of type list: it must be a tensor that speaks DLPack, of NumPy, PyTorch, JAX or CuPy",
    ),
    (
        dict(q="text"),
        TypeError,
        "q is of type str: it must be a tensor that speaks DLPack, of NumPy, PyTorch, JAX or CuPy",
    ),
    (dict(q=zeros(2, 8, 4, 16, dtype=np.float64)), ValueError, "q is float64: it must be float32, float16 or bfloat16"),
    (dict(q=zeros(2, 8, 4, 16, dtype=np.int32)), ValueError, "q is int32: it must be float32, float16 or bfloat16"),
    (
        dict(q=zeros(2, 8, 4, 16, dtype=np.complex64)),
        ValueError,
        "q is complex64: it must be float32, float16 or bfloat16",
    ),
    (dict(q=zeros(2, 8, 4, 16, dtype=np.int64)), ValueError, "q is int64: it must be float32, float16 or bfloat16"),
    (
        dict(q=zeros(2, 8, 4, 16).astype(">f4")),
        ValueError,
        "q is in the byte order of another machine: it must be in this one's",
    ),
    (dict(q=zeros(8, 4, 16)), ValueError, "q has rank 3: it must have rank 4 [batch, seqlen_q, heads_q, head_dim]"),
    (dict(q=zeros(2, 2, 8, 4, 16)), ValueError, "q has rank 5: tensors of a call have rank 1 to 4"),
    (dict(q=np.float32(1).reshape(())), ValueError, "q has rank 0: tensors of a call have rank 1 to 4"),
    (dict(q=zeros(3, 8, 4, 16)), ValueError, "q has batch 3 and k has batch 2: they must be equal"),
    (dict(q=zeros(2, 8, 3, 16)), ValueError, "q has 3 heads and k has 2: heads_q must be a multiple of heads_kv"),
    (dict(q=zeros(2, 8, 4, 32)), ValueError, "k has head_dim 16 and q has 32: they must be equal"),
    (dict(q=zeros(2, 8, 4, 0)), ValueError, "head_dim is 0: it must be from 1 to 576"),
    (dict(q=zeros(2, 8, 4, 577)), ValueError, "head_dim is 577: it must be from 1 to 576"),
    (dict(q=zeros(2, 8, 4, 32)[..., ::2]), ValueError, "q has stride 2 on its last axis: it must be 1"),
    (dict(q=zeros(2, 8, 4, 16)[:, ::-1]), ValueError, "q has stride -64 on axis 1: strides must not be negative"),
    (dict(q=zeros(2, 8, 4, 16, dtype=np.float16)), ValueError, "k is float32: it must be float16, as q is"),
    (dict(k=None), ValueError, "k is missing: give a tensor [batch, seqlen_k, heads_kv, head_dim]"),
    (dict(k=zeros(2, 8, 2, 16, dtype=np.float16)), ValueError, "k is float16: it must be float32, as q is"),
    (dict(k=zeros(2, 8, 2, 16, dtype=np.float64)), ValueError, "k is float64: it must be q's dtype"),
    (dict(k=zeros(2, 8, 2, 8)), ValueError, "k has head_dim 8 and q has 16: they must be equal"),
    (dict(k=zeros(2, 8, 16)), ValueError, "k has rank 3: it must have rank 4 [batch, seqlen_k, heads_kv, head_dim]"),
    (
        dict(k=object()),
        TypeError,
        "k is of type object: it must be a tensor that speaks DLPack, of NumPy, PyTorch, JAX or CuPy",
    ),
    (dict(v=None), ValueError, "v is missing: give a tensor [batch, seqlen_k, heads_kv, head_dim_v]"),
    (
        dict(v=zeros(2, 7, 2, 16)),
        ValueError,
        "v has shape [2, 7, 2, 16]: it must be [2, 8, 2, 16] [batch, seqlen_k, heads_kv, head_dim_v]",
    ),
    (
        dict(v=zeros(2, 8, 1, 16)),
        ValueError,
        "v has shape [2, 8, 1, 16]: it must be [2, 8, 2, 16] [batch, seqlen_k, heads_kv, head_dim_v]",
    ),
    (dict(v=zeros(2, 8, 2, 513)), ValueError, "head_dim_v is 513: it must be from 1 to 512"),
    (
        dict(out=zeros(2, 8, 4, 15)),
        ValueError,
        "out has shape [2, 8, 4, 15]: it must be [2, 8, 4, 16] [batch, seqlen_q, heads_q, head_dim_v]",
    ),
    (dict(out=zeros(2, 8, 4, 16, dtype=np.float16)), ValueError, "out is float16: it must be float32, as q is"),
    (dict(out=read_only(2, 8, 4, 16)), ValueError, "out is read-only: it must be writable"),
    (dict(out=np.broadcast_to(zeros(1, 8, 4, 16), (2, 8, 4, 16))), ValueError, "out is read-only: it must be writable"),
    (dict(q=SHARED, out=SHARED), ValueError, "out overlaps q: outputs must not share memory with any other tensor"),
    (
        dict(out=[]),
        TypeError,
        "out is of type list: it must be a tensor that speaks DLPack, of NumPy, PyTorch, JAX or CuPy",
    ),
    (dict(scale="0.1"), TypeError, "scale is of type str: it must be a number"),
    (dict(scale=float("nan")), ValueError, "scale is nan: it must be finite"),
    (dict(scale=float("inf")), ValueError, "scale is inf: it must be finite"),
    (dict(causal=1), TypeError, 'causal is of type int: it must be True, False, "bottom_right" or "top_left"'),
    (dict(causal="diagonal"), ValueError, 'causal is "diagonal": it must be True, False, "bottom_right" or "top_left"'),
    (dict(window=5), TypeError, "window is of type int: it must be a pair of integers (left, right)"),
    (dict(window=(1, 2, 3)), ValueError, "window has 3 values: it must be a pair of integers (left, right)"),
    (dict(window=(-2, 0)), ValueError, "window is (-2, 0): each side must be 0 or more, or -1 for no bound"),
    (dict(window=(1.5, 2)), TypeError, "window is of type float: it must be an integer"),
    (dict(window="ab"), TypeError, "window is of type str: it must be a pair of integers (left, right)"),
    (dict(chunk=-1), ValueError, "chunk is -1: it must be positive, or 0 for none"),
    (dict(chunk=2.5), TypeError, "chunk is of type float: it must be an integer"),
    (dict(softcap=-1.0), ValueError, "softcap is -1: it must be positive, or 0 for none"),
    (dict(softcap=float("nan")), ValueError, "softcap is nan: it must be positive, or 0 for none"),
    (dict(softcap=[]), TypeError, "softcap is of type list: it must be a number"),
    (dict(dropout=1.0), ValueError, "dropout is 1: it must be at least 0 and less than 1"),
    (
        dict(dropout=0.999, seed=1),
        ValueError,
        "dropout is 0.999: it is rounded to a multiple of 1/256, which must be less than 1: give less than 511/512",
    ),
    (dict(dropout=-0.1), ValueError, "dropout is -0.1: it must be at least 0 and less than 1"),
    (
        dict(dropout=0.5, random_state=np.zeros(2, np.int32)),
        ValueError,
        "random_state must be four neighbouring int32: the words of seed and offset, low first",
    ),
    (dict(dropout=0.5, seed=-1), ValueError, "seed is -1: it must be from 0 to 2^64 - 1"),
    (dict(dropout=0.5, seed=2**64), ValueError, "seed is 18446744073709551616: it must be from 0 to 2^64 - 1"),
    (dict(dropout=0.5, offset="1"), TypeError, "offset is of type str: it must be an integer"),
    (dict(deterministic=1), TypeError, "deterministic is of type int: it must be True or False"),
    (dict(row_invariant=1), TypeError, "row_invariant is of type int: it must be True or False"),
    (dict(alibi_slopes=zeros(3)), ValueError, "alibi_slopes has shape [3]: it must be [4] [heads_q]"),
    (dict(alibi_slopes=zeros(2, 3)), ValueError, "alibi_slopes has shape [2, 3]: it must be [2, 4] [batch, heads_q]"),
    (dict(alibi_slopes=zeros(4, dtype=np.float64)), ValueError, "alibi_slopes is float64: it must be float32"),
    (
        dict(alibi_slopes=zeros(1, 2, 4)),
        ValueError,
        "alibi_slopes has rank 3: it must be [heads_q] or [batch, heads_q]",
    ),
    (
        dict(alibi_slopes=0.5),
        TypeError,
        "alibi_slopes is of type float: it must be a tensor that speaks DLPack, of NumPy, PyTorch, JAX or CuPy",
    ),
    (
        dict(bias=zeros(8, 8)),
        ValueError,
        "bias has rank 2: it must have rank 4 [batch or 1, heads_q or 1, seqlen_q, seqlen_k]",
    ),
    (
        dict(bias=zeros(2, 4, 8, 7)),
        ValueError,
        "bias has shape [2, 4, 8, 7]: it must be [2 or 1, 4 or 1, 8, 8] [batch or 1, heads_q or 1, seqlen_q, seqlen_k]",
    ),
    (
        dict(bias=zeros(2, 3, 8, 8)),
        ValueError,
        "bias has shape [2, 3, 8, 8]: it must be [2 or 1, 4 or 1, 8, 8] [batch or 1, heads_q or 1, seqlen_q, seqlen_k]",
    ),
    (
        dict(bias=np.broadcast_to(zeros(2, 4, 8, 1), (2, 4, 8, 8))),
        ValueError,
        "bias has stride 0 on its last axis: it must be 1",
    ),
    (dict(sink=zeros(2)), ValueError, "sink has shape [2]: it must be [4] [heads_q]"),
    (dict(sink=zeros(4, dtype=np.float16)), ValueError, "sink is float16: it must be float32"),
    (dict(sink=zeros(2, 4)), ValueError, "sink has rank 2: it must have rank 1 [heads_q]"),
    (
        dict(block_mask=zeros(1, 1, 1, 2, dtype=np.uint8)),
        ValueError,
        "block_mask has shape [1, 1, 1, 2]: it must be [2 or 1, 4 or 1, 1, 1] "
        "[batch or 1, heads_q or 1, blocks of queries, blocks of keys]",
    ),
    (dict(block_mask=zeros(1, 1, 1, 1)), ValueError, "block_mask is float32: it must be uint8"),
    (
        dict(block_mask=zeros(1, 1, dtype=np.uint8)),
        ValueError,
        "block_mask has rank 2: it must have rank 4 [batch or 1, heads_q or 1, blocks of queries, blocks of keys]",
    ),
    (
        dict(block_mask=zeros(1, 1, 1, 1, dtype=np.uint8), block_size=32),
        ValueError,
        "block_size is 32: it must be 64 or 128",
    ),
    (dict(seqused_q=int32(8)), ValueError, "seqused_q has shape [1]: it must be [2] [batch]"),
    (
        dict(seqused_k=int32(9, 8)),
        ValueError,
        "seqused_k[0] is 9: it must be from 0 to the sequence's length, which is 8",
    ),
    (
        dict(seqused_k=int32(-1, 8)),
        ValueError,
        "seqused_k[0] is -1: it must be from 0 to the sequence's length, which is 8",
    ),
    (
        dict(seqused_k=np.array([8, 8])),
        ValueError,
        "seqused_k is int64: it must be int32, as .to(torch.int32) or .astype(numpy.int32) makes it",
    ),
    (
        dict(cu_seqlens_q=[0, 8]),
        TypeError,
        "cu_seqlens_q is of type list: it must be a tensor that speaks DLPack, of NumPy, PyTorch, JAX or CuPy, as "
        "torch.tensor(.., dtype=torch.int32) or numpy.array(.., numpy.int32) makes it",
    ),
    (
        dict(q=zeros(2, 2, 1, 16), k=zeros(2, 2, 50, 16), v=zeros(2, 2, 50, 16)),
        ValueError,
        "q has 1 heads and k has 50: heads_q must be a multiple of heads_kv (are the axes [batch, heads, seqlen, "
        "head_dim]?)",
    ),
    (dict(seqused_k=zeros(2)), ValueError, "seqused_k is float32: it must be int32"),
    (dict(cu_seqlens_q=int32(0, 8)), ValueError, "q has rank 4: it must have rank 3 [total_q, heads_q, head_dim]"),
    (dict(cu_seqlens_k=int32(0, 8, 16)), ValueError, "k has rank 4: it must have rank 3 [total_k, heads_kv, head_dim]"),
    (dict(max_seqlen_q=-2), ValueError, "max_seqlen_q is -2: it must be 0 or more, or -1 for unknown"),
    (dict(max_seqlen_k="8"), TypeError, "max_seqlen_k is of type str: it must be an integer"),
    (dict(max_seqlen_k=2**63), ValueError, "max_seqlen_k is 9223372036854775808: it must fit 64 bits"),
    (dict(threads=-1), ValueError, "threads is -1: it must be from 1 to 4096, or 0 for one per hardware thread"),
    (dict(threads=4097), ValueError, "threads is 4097: it must be from 1 to 4096, or 0 for one per hardware thread"),
    (dict(threads="all"), TypeError, "threads is of type str: it must be an integer"),
    (dict(threads=2**40), ValueError, "threads is 1099511627776: it must fit 32 bits"),
    (dict(engine="gpu"), NotImplementedError, "q is on cpu: the gpu engine takes tensors on a CUDA device"),
    (dict(engine="tpu"), ValueError, 'engine is "tpu": it must be automatic, cpu or gpu'),
    (dict(kernels="sm80"), NotImplementedError, "kernels is sm80: the cpu engine has one family"),
    (dict(kernels="sm70"), ValueError, 'kernels is "sm70": it must be sm90 or sm80'),
    (dict(engine=1), TypeError, "engine is of type int: it must be automatic, cpu or gpu"),
    (dict(stream=5), ValueError, "stream is given for tensors on the cpu: it must be null"),
    (dict(stream=-1), ValueError, "stream is -1: it must be from 0 to 2^64 - 1"),
    (dict(stream="0"), TypeError, "stream is of type str: it must be an integer"),
    (
        dict(q_descale=zeros(2, 2)),
        ValueError,
        "q_descale is given, but q is float32: it belongs to 8-bit inputs",
    ),
    (
        dict(page_table=np.full((2, 1), 2, np.int32)),
        ValueError,
        "page_table[0][0] is 2: the pages of k and v are numbered from 0 to 1",
    ),
    (
        dict(leftpad_k=np.array([0, 9], np.int32)),
        ValueError,
        "leftpad_k[1] is 9: it must be from 0 to the sequence's used rows, which are 8",
    ),
    (
        dict(cache_batch_idx=np.array([0, -1], np.int32)),
        ValueError,
        "cache_batch_idx[1] is -1: the entries of k and v are numbered from 0 to 1",
    ),
    (dict(cuasal=True), TypeError, "cuasal is no option of strobe.attention: did you mean causal?"),
    (dict(retrun_lse=True), TypeError, "retrun_lse is no option of strobe.attention: did you mean return_lse?"),
    (dict(temperature=1), TypeError, f"temperature is no option of strobe.attention: the options are {OPTIONS}"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), CASES)
def test_forward_rejects(arguments, error, message):
    out = np.full((2, 8, 4, 16), 7, np.float32)
    call = {"q": zeros(2, 8, 4, 16), "k": zeros(2, 8, 2, 16), "v": zeros(2, 8, 2, 16), "out": out, **arguments}
    with pytest.raises(error) as caught:
        strobe.attention(call.pop("q"), call.pop("k"), call.pop("v"), **call)
    assert str(caught.value) == message
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("attn_mask", "mask, whose rank 2 is [batch, seqlen_k], or call PyTorch's function in strobe.torch.sdpa()"),
        ("attention_mask", "mask"),
        ("key_padding_mask", "mask, the other way around: True where a key is visible"),
        ("attn_bias", "bias"),
        ("is_causal", 'causal: "top_left" is what is_causal means, True aligns to the last key'),
        ("softmax_scale", "scale"),
        ("dropout_p", "dropout"),
        ("window_size", "window"),
        ("attention_chunk", "chunk"),
        ("s_aux", "sink"),
        ("block_table", "page_table"),
        ("cache_leftpad", "leftpad_k"),
        ("enable_gqa", "k and v with fewer heads than q, which needs no flag"),
    ],
)
def test_names_of_other_libraries(name, ours):
    x, lse = zeros(1, 8, 1, 16), zeros(1, 1, 8)
    calls = {
        "strobe.attention": lambda **options: strobe.attention(x, x, x, **options),
        "strobe.attention_backward": lambda **options: strobe.attention_backward(x, x, x, x, x, lse, **options),
        "strobe.explain": lambda **options: strobe.explain(x, x, x, **options),
    }
    if not ours.startswith("mask"):  # which is no argument of every call
        calls["strobe.plan_quantization"] = lambda **options: strobe.plan_quantization(x, x, x, **options)
    for function, call in calls.items():
        with pytest.raises(TypeError) as caught:
            call(**{name: None})
        assert str(caught.value) == f"{name} is no option of {function}: give {ours}"


BACKWARD_CASES = [
    ({"d_o": None}, ValueError, "d_o is missing: give a tensor [batch, seqlen_q, heads_q, head_dim_v]"),
    ({"lse": zeros(2, 8, 4)}, ValueError, "lse has shape [2, 8, 4]: it must be [2, 4, 8] [batch, heads_q, seqlen_q]"),
    ({"lse": zeros(2, 4, 8, dtype=np.float16)}, ValueError, "lse is float16: it must be float32"),
    ({"o": zeros(2, 8, 4, 16, dtype=np.float16)}, ValueError, "o is float16: it must be float32, as q is"),
    ({"d_lse": zeros(2, 4)}, ValueError, "d_lse has rank 2: it must have rank 3 [batch, heads_q, seqlen_q]"),
    ({"dq": read_only(2, 8, 4, 16)}, ValueError, "dq is read-only: it must be writable"),
    ({"return_d_bias": True}, ValueError, "return_d_bias is given without bias: give bias, too"),
    ({"return_d_sink": True}, ValueError, "return_d_sink is given without sink: give sink, too"),
    ({"engine": "cuda"}, ValueError, 'engine is "cuda": it must be automatic, cpu or gpu'),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BACKWARD_CASES)
def test_backward_rejects(arguments, error, message):
    o, lse, k = zeros(2, 8, 4, 16), zeros(2, 4, 8), zeros(2, 8, 2, 16)
    call = {"d_o": o.copy(), "q": o.copy(), "k": k, "v": k.copy(), "o": o, "lse": lse, **arguments}
    with pytest.raises(error) as caught:
        strobe.attention_backward(**call)
    assert str(caught.value) == message


def test_explain_rejects():
    shape = (1, 8, 2, 16)
    with pytest.raises(ValueError, match='device is "gpu": it must be cpu, cuda or cuda:INDEX'):
        strobe.explain(shape, shape, shape, device="gpu")
    with pytest.raises(ValueError, match="q is int4: it must be float32, float16 or bfloat16"):
        strobe.explain(shape, shape, shape, dtype="int4")
    with pytest.raises(TypeError, match="q, k and v must be given"):
        strobe.explain(None, None, None)


def test_masks_reject():
    with pytest.raises(ValueError, match="block_size is 100: it must be 64 or 128"):
        strobe.local_block_mask(256, 256, block_size=100)
    with pytest.raises(ValueError, match="stride is 0: it must be 1 or more"):
        strobe.strided_block_mask(256, 256, stride=0)
    with pytest.raises(ValueError, match="left is -2 and right 0: each must be 0 or more, or -1 for no bound"):
        strobe.local_block_mask(256, 256, left=-2, right=0)
    with pytest.raises(ValueError, match="dropout is 2: it must be at least 0 and less than 1"):
        strobe.dropout_mask((1, 1, 2, 2), 2.0)
    with pytest.raises(ValueError, match=r"dropout is 0\.999: it is rounded to a multiple of 1/256"):
        strobe.dropout_mask((1, 1, 2, 2), 0.999)
