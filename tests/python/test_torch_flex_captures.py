# SPDX-License-Identifier: Apache-2.0
"""Tensors and numbers that functions of flex_attention read: every dtype, layout and way to reach them."""

import functools
import math

import numpy as np
import pytest
import strobe.torch
import torch
from expression_reference import draw
from flex_check import check
from flex_functions import SK, SQ, B, H, K, Q, V
from strobe.torch.flex import TraceError
from torch.nn.attention import flex_attention as pytorch

REALS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
WHOLE = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]


def of_dtype(dtype, *shape):
    if dtype.is_floating_point:
        return draw(5, *shape).to(dtype)
    numbers = torch.arange(math.prod(shape)).view(shape) % 5
    return (numbers if dtype in (torch.uint8, torch.bool) else numbers - 2).to(dtype)


@pytest.mark.parametrize("dtype", REALS + WHOLE, ids=str)
def test_captures_of_every_dtype(dtype):
    check(lambda t: lambda s, b, h, q, k: s + t[k] * t[q], None, [of_dtype(dtype, SK)])
    check(lambda t: lambda s, b, h, q, k: s * t[b][h] + (k < t[b, h]), None, [of_dtype(dtype, B, H)])
    check(lambda t: lambda s, b, h, q, k: s * t + (k < t), None, [of_dtype(dtype, 4)[3]])


LAYOUTS = {
    "flipped": (lambda t: t.flip(0), (SK,)),
    "every other": (lambda t: t[::2], (2 * SK,)),
    "from the third on": (lambda t: t[2:], (SK + 2,)),
    "a diagonal": (lambda t: t.diagonal(), (SK, SK)),
    "a transposed column": (lambda t: t.t()[:, 1], (3, SK)),
    "overlapping": (lambda t: t.unfold(0, 3, 1)[:, 1], (SK + 2,)),
    "expanded": (lambda t: t.expand(SK), (1,)),
    "selected and narrowed": (lambda t: t.select(0, 1).narrow(0, 3, SK), (2, SK + 5)),
    "joined": (lambda t: torch.cat([t, t])[:SK], (SK // 2,)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_captures_of_every_layout(name):
    view, shape = LAYOUTS[name]
    check(lambda t: lambda s, b, h, q, k: s + view(t)[k] * view(t)[q], None, [draw(6, *shape)])


class Scaled:
    """An object that is called, and whose methods are."""

    def __init__(self, table):
        self.table, self.also = table, {"tables": [table]}

    def __call__(self, s, b, h, q, k):
        return s + self.table[h]

    def of_a_dict(self, s, b, h, q, k):
        return s + self.also["tables"][0][h]

    @staticmethod
    def of_no_object(s, b, h, q, k, table):
        return s + table[h]


class Layer(torch.nn.Module):
    """Parameters, buffers and layers of its own."""

    def __init__(self, table):
        super().__init__()
        self.table, self.scale = table, 0.5
        self.embedding = torch.nn.Embedding.from_pretrained(draw(8, SQ + SK, H), freeze=True)
        self.register_buffer("of_keys", draw(9, SK))

    def forward(self, s, b, h, q, k):
        return s + self.table[h] * self.scale + self.of_keys[k] + self.embedding.weight[q - k + SK - 1, h]


def by_default(table):
    def score(s, b, h, q, k, table=table):
        return s + table[h]

    return score


WAYS = {
    "an object": Scaled,
    "a method": lambda t: Scaled(t).of_a_dict,
    "a static method": lambda t: functools.partial(Scaled.of_no_object, table=t),
    "a layer": Layer,
    "a method of a layer": lambda t: Layer(t).forward,
    "a default": by_default,
    "a partial of a partial": lambda t: functools.partial(
        functools.partial(lambda s, b, h, q, k, by, t: s * by + t[h], by=2.0), t=t
    ),
    "what autograd made": lambda t: (lambda made: lambda s, b, h, q, k: s + made[h] * k / SK)((t * 2).exp()),
}


@pytest.mark.parametrize("name", WAYS)
def test_ways_to_a_capture(name):
    check(WAYS[name], None, [draw(7, H)])


def test_names_that_texts_have_for_something_else():
    score, k_len, nan, _ = draw(5, H), draw(6, SK), torch.tensor(0.5), torch.tensor(0.25)
    α, a_name_that_is_much_longer_than_those_of_captures_may_be = draw(7, H), draw(8, H)

    def score_mod(s, b, h, q, k):
        named = α[h] * a_name_that_is_much_longer_than_those_of_captures_may_be[h]
        return s + score[h] + k_len[k] + nan * _ + named

    check(lambda: score_mod, None, [])


NUMBERS = {
    "small and large": lambda s, b, h, q, k: s * 1e-3 + 1e-7 * q - 2.5e1 * 1e-30 + 1e-45 + 1_000 * 1e-6,
    "infinities": lambda s, b, h, q, k: torch.where(q >= k, s, torch.tensor(-math.inf)).masked_fill(k == 3, -math.inf),
    "the least of a dtype": lambda s, b, h, q, k: torch.where((q >= k) | (k < 2), s, torch.finfo(s.dtype).min),
    "of NumPy": lambda s, b, h, q, k: s * np.float32(0.3) + np.int64(3) * q * 0.01 + np.float64(0.1) * s,
    "of tensors": lambda s, b, h, q, k: s * torch.tensor(0.25) + torch.tensor([0.5, 1.0])[h % 2] + torch.arange(4)[h],
    "read by Python": lambda s, b, h, q, k: s * torch.tensor(0.5).item() + float(torch.tensor(2)) + int(torch.ones(())),
    "of Python's modules": lambda s, b, h, q, k: s * math.log(SK) / math.sqrt(2) + len(V) + V.shape[-1] * 0.01,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    check(lambda: NUMBERS[name], None, [])


ARITHMETIC = {
    "quotients of negative integers": lambda s, b, h, q, k: s + 0.125 * (
        (q - k) // 3 + (q - k) % 3 + (k - q) // -4 + (k - q) % -4 + -7 // (k + 1) + -7 % (k + 1) + 7 // (q - 60)
        + 7 % (q - 60) + torch.where(q == k, 0, 7 * q // torch.where(q == k, 1, q - k))
    ),
    "remainders of reals": lambda s, b, h, q, k: s + (q - k) % 2.5 * 0.1 + (q - k) // 2.5 * 0.1 + (q - k) / -4 % 0.75,
    "truths as numbers": lambda s, b, h, q, k: (
        s + (q > k) * (h > 1) + (q > k) * 2 + ((q > k) + (k > 3)) - (h == 1) * 0.5 + (q > k) / 2 + -(q > k).int() * 0.5
        + ((q > k) + (q < 3) + (k > 9)).float() + torch.where(q > k, True, k == 4)
    ),
    "branches within branches": lambda s, b, h, q, k: torch.where(
        q > k, torch.where(h == 0, s, s * 2), torch.where(b == 0, s - 1, torch.where(k % 2 == 0, s + 1, 0))
    ),
    "comparisons of kinds": lambda s, b, h, q, k: (
        torch.where(s > 0, s, q * 0.1) + (q * 0.5 > k) + (s.round() == q) + (q >= 3.5) + ((q > k) == (h > 1))
        + q.eq(k) + q.ne(3) * 0.1 + q.lt(k) * 0.2 + torch.ge(q, k) * 0.3
    ),
    "powers": lambda s, b, h, q, k: (
        s * (q + 1) ** -0.5 + (k + 1) ** 2 * 0.001 + 2.0 ** -(h + 1) + 2**h + 3 ** (h + 1) * 0.01 + torch.pow(2, h)
        + torch.pow(s.abs() + 1, 1.5)
    ),
    "dtypes of positions": lambda s, b, h, q, k: (
        s + q.float() / k.clamp(min=1) + q.double() * 0.01 + q.half() * 0.01 + torch.sqrt(q)
        + (q.to(torch.int64) * k.to(torch.int16) % 7).to(s) * 0.1
    ),
    "one after another": lambda s, b, h, q, k: functools.reduce(lambda x, i: x * 0.9 + 0.1 * i, range(12), s),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name):
    check(lambda: ARITHMETIC[name], None, [])


INDICES = {
    "arithmetic of positions": (lambda t: lambda s, b, h, q, k: s + t[(b * H + h) % 5, (q * 2 + k) // 3 % 7], (5, 7)),
    "a group of heads": (lambda t: lambda s, b, h, q, k: s * t[h // 2, 0] + t[(h + 1) % 2, 1], (2, 2)),
    "truths": (lambda t: lambda s, b, h, q, k: s + t[(q > k).int()] + t[(q > k).long()], (2,)),
    "modulo its own length": (lambda t: lambda s, b, h, q, k: s + t[k % len(t)] + t[(q - k) % t.shape[0]], (7,)),
    "permuted twice": (
        lambda t: (lambda at: lambda s, b, h, q, k: s + t[at[at[k]]])(torch.arange(SK).mul(11).int() % SK), (SK,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_indices(name):
    make, shape = INDICES[name]
    check(make, None, [draw(6, *shape)])


BEYOND = {
    "complex": (torch.zeros(H, dtype=torch.complex64), TraceError, "a tensor of torch.complex64"),
    "unsigned": (torch.zeros(H, dtype=torch.uint16), TraceError, "a tensor of torch.uint16"),
    "8-bit": (torch.zeros(H, dtype=torch.float8_e4m3fn), TraceError, "a tensor of torch.float8_e4m3fn"),
    "sparse": (torch.ones(H).to_sparse(), ValueError, "it must be dense"),
    "elsewhere": (torch.zeros(H, device="meta"), ValueError, "it must be on the cpu or on a CUDA device"),
    "of 64 bits": (torch.full((H,), 2**40), ValueError, r"`tensor`\[0\] is 1099511627776: integers of texts"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_captures_that_are_refused(name):
    tensor, kind, reason = BEYOND[name]
    with pytest.raises(kind, match=reason.replace("`tensor`", "capture `tensor`")):
        strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s + tensor[h].to(s.dtype))


WITHOUT_A_SCORE = {
    "an integer": (lambda s, b, h, q, k: q - k, lambda s, b, h, q, k: s * 0 + (q - k)),
    "a number": (lambda s, b, h, q, k: 1.5, lambda s, b, h, q, k: s * 0),
    "a tensor": (lambda s, b, h, q, k: OF_PAIRS[q, k], lambda s, b, h, q, k: s * 0 + OF_PAIRS[q, k]),
}
OF_PAIRS = draw(7, SQ, SK)


@pytest.mark.parametrize("name", WITHOUT_A_SCORE)
def test_scores_that_do_not_read_the_score(name):
    one, same = (strobe.torch.flex_attention(Q, K, V, function) for function in WITHOUT_A_SCORE[name])
    torch.testing.assert_close(one, same, rtol=0, atol=1e-6)


def test_a_mask_of_all_pairs_that_pytorch_computed():
    """create_mask runs a function under vmap; its result is a capture like others."""
    pairs = pytorch.create_mask(lambda b, h, q, k: (q >= k) & (h != 1) | (b == 1), B, H, SQ, SK, device="cpu")
    check(None, lambda b, h, q, k: pairs[b, h, q, k], [])


def test_under_vmap():
    """Of the call, and of a captured tensor."""
    many, scales = torch.stack([Q, Q * 0.5]), draw(5, 3, H)
    out = torch.vmap(lambda q: strobe.torch.flex_attention(q, K, V, lambda s, b, h, q, k: s * 2))(many)
    one = strobe.torch.flex_attention(many[1], K, V, lambda s, b, h, q, k: s * 2)
    torch.testing.assert_close(out[1], one)
    out = torch.vmap(lambda t: strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s * t[h]))(scales)
    torch.testing.assert_close(out[2], strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s * scales[2][h]))
