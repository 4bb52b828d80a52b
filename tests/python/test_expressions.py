# SPDX-License-Identifier: Apache-2.0
"""Scores and masks as texts, with tensors that they read, of NumPy's arrays."""

import copy
import pickle

import expression_reference
import numpy as np
import pytest
import strobe
import strobe.torch
import torch
from strobe import _core

BATCH, SQ, SK, HEADS, HEADS_KV = 2, 37, 45, 4, 2
GENERATOR = np.random.default_rng(5)
Q = GENERATOR.standard_normal((BATCH, SQ, HEADS, 16), np.float32)
K, V = (GENERATOR.standard_normal((BATCH, SK, HEADS_KV, 16), np.float32) for _ in range(2))
SLOPE = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
TABLE = GENERATOR.standard_normal((HEADS, SQ + SK - 1), np.float32)
DOCUMENT = GENERATOR.integers(0, 3, (BATCH, SK))
SEEN = GENERATOR.random((SQ, SK)) < 0.7
CAP = np.array(5, np.float32)

# Texts with their captures, and what they mean.
CASES = {
    "alibi": (
        {"score": "score + slope[head] * (k - q)", "mask": "k <= q + 8", "captures": {"slope": SLOPE}},
        lambda s, b, h, q, k: s + torch.from_numpy(SLOPE)[h] * (k - q),
        lambda b, h, q, k: k <= q + 8,
    ),
    "relative bias": (
        {"score": f"score + table[head][k - q + {SQ - 1}]", "captures": {"table": TABLE}},
        lambda s, b, h, q, k: s + torch.from_numpy(TABLE)[h, k - q + SQ - 1],
        None,
    ),
    "documents": (
        {"mask": "document[batch][k] == document[batch][q]", "captures": {"document": DOCUMENT}},
        None,
        lambda b, h, q, k: torch.from_numpy(DOCUMENT)[b, k] == torch.from_numpy(DOCUMENT)[b, q],
    ),
    "a capture without axes": (
        {"score": "cap * tanh(score / cap)", "captures": {"cap": CAP}},
        lambda s, b, h, q, k: 5 * torch.tanh(s / 5),
        None,
    ),
    "booleans": (
        {"mask": "seen[q][k]", "captures": {"seen": SEEN}},
        None,
        lambda b, h, q, k: torch.from_numpy(SEEN)[q, k],
    ),
}


def reference(score, mask):
    out, lse = expression_reference.attention(*(torch.from_numpy(x).double() for x in (Q, K, V)), score, mask)
    return out.numpy(), lse.numpy()


@pytest.mark.parametrize("name", CASES)
def test_texts_mean_what_they_say(name):
    options, score, mask = CASES[name]
    out, lse = strobe.attention(Q, K, V, return_lse=True, **options)
    wanted, wanted_lse = reference(score, mask)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=2e-6)
    np.testing.assert_allclose(lse, wanted_lse, rtol=0, atol=5e-6)


def test_a_function_holds_texts_and_captures():
    options, *_ = CASES["alibi"]
    function = strobe.ScoreFunction(**options)
    np.testing.assert_array_equal(strobe.attention(Q, K, V, score=function), strobe.attention(Q, K, V, **options))
    other = {"slope": TABLE[:, 1]}  # of a call, in the place of the function's, with strides of its own
    wanted = strobe.attention(Q, K, V, **options | {"captures": {"slope": TABLE[:, 1].copy()}})
    np.testing.assert_array_equal(strobe.attention(Q, K, V, score=function, captures=other), wanted)
    assert "d score / d slope: float(k - q) (one sum)" in function.explain()
    assert repr(function) == (
        "ScoreFunction(score='score + slope[head] * (k - q)', mask='k <= q + 8', captures=['slope'])"
    )


def test_functions_are_copied_and_pickled_with_their_captures():
    function = strobe.ScoreFunction("score + slope[head] * (k - q)", "k <= q + 8", {"slope": SLOPE})
    wanted = strobe.attention(Q, K, V, score=function)
    for other in (copy.copy(function), copy.deepcopy(function), pickle.loads(pickle.dumps(function))):
        assert other.explain() == function.explain()
        np.testing.assert_array_equal(strobe.attention(Q, K, V, score=other), wanted)
    assert copy.deepcopy(function).captures["slope"] is not SLOPE


def test_masks_of_both_kinds_join():
    mask = GENERATOR.random((BATCH, SQ, SK)) < 0.7
    out = strobe.attention(Q, K, V, mask=mask, mask_text="k <= q + 3")
    both = mask & (np.arange(SK) <= np.arange(SQ)[:, None] + 3)
    np.testing.assert_allclose(out, strobe.attention(Q, K, V, mask=both), rtol=0, atol=2e-6)
    padding = np.arange(SK)[None] < np.array([[30], [45]])  # keeps its keys' numbers beside a text that reads k_len
    out = strobe.attention(Q, K, V, mask=padding, score="score + k_len - 2 * k")
    wanted = strobe.attention(
        Q,
        K,
        V,
        bias=np.where(padding, SK - 2.0 * np.arange(SK), -np.inf).astype(np.float32)[:, None, None].repeat(SQ, 2),
    )
    np.testing.assert_allclose(out, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("normalize", ["softmax", "none"])
@pytest.mark.parametrize(
    "score", ["2 * tanh(score)", "score * score", "max(score, 0)", "-score", "score * cap", "score + cap * k"]
)
def test_what_a_mask_hides_no_score_brings_back(score, normalize):
    """A mask that is a tensor hides what the same mask as text hides, in both passes."""
    captures = {"cap": np.array(-0.5, np.float32)} if "cap" in score else {}
    options = {"score": score, "normalize": normalize, "softcap": 9.0}
    seen = SEEN[None].repeat(BATCH, 0)
    seen[0, 3] = False
    tensor = options | {"mask": seen, "captures": captures or None}
    text = options | {"mask": "seen[batch][q][k]", "captures": {**captures, "seen": seen}}
    results = []
    for call in (tensor, text):
        o, lse = strobe.attention(Q, K, V, return_lse=True, **call) if normalize == "softmax" else (None, None)
        out = strobe.attention(Q, K, V, **call) if o is None else o
        results.append((out, *strobe.attention_backward(np.ones_like(out), Q, K, V, o, lse, **call)))
    for mine, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-5)
    assert "score" in strobe.explain(Q, K, V, **tensor)


def test_a_mask_leaves_texts_that_options_say_options():
    text = {"score": "score + slope[head] * (k - q)", "causal": "top_left", "captures": {"slope": SLOPE}}
    assert "the score is the option ALiBi" in strobe.explain(Q, K, V, mask=SEEN[None], **text)


def test_gradients_of_captures():
    options = {
        "score": f"score * temperature[head] + table[head][k - q + {SQ - 1}] * cap",
        "mask": "k <= q + 8",
        "captures": {"temperature": SLOPE + 1, "table": TABLE, "cap": CAP},
    }
    out, lse = strobe.attention(Q, K, V, return_lse=True, **options)
    d_o = GENERATOR.standard_normal(out.shape, np.float32)
    *gradients, captured = strobe.attention_backward(d_o, Q, K, V, out, lse, return_d_captures=True, **options)
    q, k, v, temperature, table, cap = expression_reference.copies(
        *map(torch.from_numpy, (Q, K, V, SLOPE + 1, TABLE, CAP))
    )
    wanted, _ = expression_reference.attention(
        q, k, v,
        lambda s, b, h, i, j: s * temperature[h] + table[h, j - i + SQ - 1] * cap,
        lambda b, h, i, j: j <= i + 8,
    )  # fmt: skip
    wanted.backward(torch.from_numpy(d_o).double())
    for gradient, x in zip(gradients, (q, k, v), strict=True):
        np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=0, atol=3e-5)
    assert list(captured) == ["cap", "table", "temperature"]
    for name, x in (("cap", cap), ("table", table), ("temperature", temperature)):
        assert captured[name].dtype == np.float32
        np.testing.assert_allclose(captured[name], x.grad.numpy(), rtol=1e-4, atol=1e-4, err_msg=name)


def test_captures_that_scores_compare_have_no_gradient():
    options = {"score": "limit[head] < k ? score * 2 : score", "captures": {"limit": SLOPE}}
    out, lse = strobe.attention(Q, K, V, return_lse=True, **options)
    *_, captured = strobe.attention_backward(out, Q, K, V, out, lse, return_d_captures=True, **options)
    assert captured == {}


class NotText:
    pass


ERRORS = [
    ({"score": "score + slop[head]", "captures": {"slope": SLOPE}}, "`slop`; did you mean `slope`? at column 9"),
    ({"score": "score + table[head]"}, "unknown name `table` at column 9"),
    ({"score": "score", "captures": {"slope": SLOPE}}, "captures: `slope` is read by no text: leave it out"),
    ({"captures": {"slope": SLOPE}}, "captures is given without a text: give score or mask, too"),
    ({"score": "score + a[head]", "captures": {"a": SLOPE.astype(np.float64)}}, "capture `a` is float64: it must be"),
    ({"score": "score + a[head]", "captures": {"a": TABLE}}, "`a` has 2 dimensions, but 1 index is given"),
    ({"score": "score + a", "captures": {"a": SLOPE}}, "`a` has 1 dimension, but 0 indices are given"),
    ({"score": "score + a[head]", "captures": {"a": SLOPE[::-1]}}, "capture `a` has stride -1 on axis 0: strides must"),
    ({"score": ""}, "score is empty: it must be an expression"),
    ({"mask": "score < 1"}, "mask: a mask may not read `score` at column 1"),
    ({"mask": "q + k"}, "mask: the text is an integer where a boolean is needed"),
    ({"score": "score + k", "captures": {"k": SLOPE}}, "captures: `k` is a name of the language"),
    ({"mask": "k <= q", "mask_text": "k >= 3"}, "mask is text, and mask_text is given, too: join the two by &&"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_wrong_texts_say_what_is_wrong(options, message):
    with pytest.raises(ValueError) as error:
        strobe.attention(Q, K, V, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": 3}, "score is of type int: it must be text, or a strobe.ScoreFunction"),
        ({"score": "score + a", "captures": {"a": 2.0}}, "capture `a` is of type float: it must be a tensor"),
        ({"score": "score", "captures": [SLOPE]}, "captures is of type list: it must be a dict of names and tensors"),
        ({"score": "score", "captures": {3: SLOPE}}, "a name in captures is of type int: it must be text"),
        ({"score": "score + a", "captures": {"a": None}}, "capture `a` is None: it must be a tensor"),
    ],
)
def test_wrong_types_say_what_is_wrong(options, message):
    with pytest.raises(TypeError) as error:
        strobe.attention(Q, K, V, **options)
    assert message in str(error.value)


def test_functions_say_what_is_wrong_when_they_are_made():
    with pytest.raises(ValueError, match="one must be"):
        strobe.ScoreFunction()
    with pytest.raises(ValueError, match="at column 1"):
        strobe.ScoreFunction("scores")
    with pytest.raises(TypeError, match="score is of type int: it must be text"):
        strobe.ScoreFunction(3)
    with pytest.raises(TypeError, match="capture `a` is of type float"):
        strobe.ScoreFunction("score + a", captures={"a": 2.0})
    function = strobe.ScoreFunction("score", "k <= q")
    with pytest.raises(ValueError, match="score has a mask, and a text is given as one, too"):
        strobe.attention(Q, K, V, score=function, mask="k > 3")


@pytest.mark.parametrize("name", ["score", "mask", "mask_text"])
def test_python_functions_are_sent_to_flex_attention(name):
    wanted = (
        f"{name} is a Python function: write it as text, or call strobe.torch.flex_attention, which takes functions"
    )
    with pytest.raises(TypeError, match=wanted):
        strobe.attention(Q, K, V, **{name: lambda b, h, q, k: k <= q})
    with pytest.raises(TypeError, match=wanted):
        strobe.torch.attention(*map(torch.from_numpy, (Q, K, V)), **{name: lambda b, h, q, k: k <= q})
    if name != "mask_text":
        with pytest.raises(TypeError, match=wanted):
            strobe.ScoreFunction(**{name: lambda b, h, q, k: k <= q})


def test_chained_comparisons_and_words_of_python_say_what_to_write():
    with pytest.raises(ValueError, match=r"comparisons do not chain: write `0 <= q - k && q - k <= 5` at column 12"):
        strobe.attention(Q, K, V, mask="0 <= q - k <= 5")
    with pytest.raises(ValueError, match=r"unexpected `and`: write `&&` at column 8"):
        strobe.attention(Q, K, V, mask="k <= q and q < 5")


def test_ids_beyond_32_bits_are_errors():
    options = {"mask": "document[batch][k] == document[batch][q]"}
    with pytest.raises(ValueError, match=r"capture `document`\[0\]\[0\] is \d+: integers of texts have 32 bits"):
        strobe.attention(Q, K, V, captures={"document": DOCUMENT + 2**31}, **options)
    least = strobe.attention(Q, K, V, captures={"document": DOCUMENT - 2**31}, **options)
    np.testing.assert_array_equal(least, strobe.attention(Q, K, V, captures={"document": DOCUMENT}, **options))


def test_many_functions_are_parsed():
    """More than are kept, of which the first is asked for again."""
    for i in (*range(300), 0):
        assert f"d score / d score: {i + 2}.0" in _core.ScoreFunction(f"score * {i + 2}", "", None).explain()
