# SPDX-License-Identifier: Apache-2.0
"""Functions of scores and masks as users of PyTorch's FlexAttention write them, PyTorch's own tests among them."""

import functools

import torch
from expression_reference import draw
from torch.nn.attention import flex_attention as pytorch

B, H, SQ, SK, D = 2, 4, 40, 52, 16
SIDE = 7
Q, K, V = draw(1, B, H, SQ, D), draw(2, B, H, SK, D), draw(3, B, H, SK, D)
D_OUT = draw(4, B, H, SQ, D)


class Bias(torch.nn.Module):
    """Functions that find their tensors in an object."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def score(self, score, b, h, q, k):
        return score + self.table[h, q - k + SK - 1]


def bucket(distance):
    """T5's, of keys on both sides."""
    sign = (distance < 0).to(torch.int32) * 8
    n = distance.abs()
    large = 4 + (torch.log(n.float() / 4 + 1e-6) / 2.0 * 4).to(torch.int32)
    return sign + torch.where(n < 4, n, torch.minimum(large, torch.full_like(large, 7)))


def nested(scale, offset):
    def inner(x):
        return x * scale + offset

    return inner


def ramp(h, x, slope):
    return torch.where(h % 2 == 0, x * slope[h], x)


# By name: what makes the function of its tensors, and the tensors. Captured reals have gradients.
SCORES = {
    "identity": (lambda: lambda s, b, h, q, k: s, {}),
    "times two": (lambda: lambda s, b, h, q, k: s * 2, {}),
    "squared": (lambda: lambda s, b, h, q, k: s * s, {}),
    "head offset": (lambda offset: lambda s, b, h, q, k: s + offset[h], {"offset": draw(5, H)}),
    "head scale": (lambda scale: lambda s, b, h, q, k: s * scale[h], {"scale": draw(6, H)}),
    "relative": (lambda: lambda s, b, h, q, k: s + (q - k) * 0.125, {}),
    "relative, by logarithms": (lambda: lambda s, b, h, q, k: s - torch.log1p((q - k).abs().float()), {}),
    "alibi": (lambda slope: lambda s, b, h, q, k: s + slope[h] * (k - q), {"slope": draw(7, H)}),
    "alibi, a part of heads": (
        lambda slope: lambda s, b, h, q, k: torch.where(h >= 2, s - slope[h] * (q - k).abs(), s),
        {"slope": draw(7, H)},
    ),
    "causal": (lambda: lambda s, b, h, q, k: torch.where(q >= k, s, float("-inf")), {}),
    "causal, of an inverse": (lambda: lambda s, b, h, q, k: torch.where(~(q < k), s, -torch.inf), {}),
    "softcap": (lambda: lambda s, b, h, q, k: 3 * torch.tanh(s / 3), {}),
    "softcap, learnt": (lambda cap: lambda s, b, h, q, k: cap * torch.tanh(s / cap), {"cap": torch.tensor(3.0)}),
    "bias": (lambda bias: lambda s, b, h, q, k: s + bias[b, h, q, k], {"bias": draw(8, B, H, SQ, SK)}),
    "bias of pairs": (lambda bias: lambda s, b, h, q, k: s + bias[q, k], {"bias": draw(8, SQ, SK)}),
    "bias of keys": (lambda bias: lambda s, b, h, q, k: s + bias[b][h, k], {"bias": draw(8, B, H, SK)}),
    "forgetting": (lambda f: lambda s, b, h, q, k: s + f[b, h, q] - f[b, h, k], {"f": -draw(9, B, H, SK).abs()}),
    "relative bias": (lambda t: lambda s, b, h, q, k: s + t[h, q - k + SK - 1], {"t": draw(10, H, SQ + SK - 1)}),
    "relative bias, from the end": (lambda t: lambda s, b, h, q, k: s + t[h, q - k], {"t": draw(10, H, SQ + SK - 1)}),
    "relative bias of an object": (lambda t: Bias(t).score, {"t": draw(10, H, SQ + SK - 1)}),
    "a table of buckets": (lambda t: lambda s, b, h, q, k: s + t[h, bucket(q - k)], {"t": draw(11, H, 16)}),
    "documents": (
        lambda doc: lambda s, b, h, q, k: torch.where(doc[b, q] == doc[b, k], s, -torch.inf),
        {"doc": torch.arange(SK).div(9, rounding_mode="floor").expand(B, SK)},
    ),
    "a document's own scale": (
        lambda doc, scale: lambda s, b, h, q, k: s * scale[doc[q]],
        {"doc": torch.arange(SK) // 20, "scale": draw(12, 3)},
    ),
    "one tensor twice": (lambda t: lambda s, b, h, q, k: s + t[q] * t[k], {"t": draw(13, SK)}),
    "one axis at a time": (lambda t: lambda s, b, h, q, k: s + t[b][h][q][k], {"t": draw(14, B, H, SQ, SK)}),
    "axes in another order": (lambda t: lambda s, b, h, q, k: s + t[:, k][q], {"t": draw(15, SQ, SK)}),
    "an ellipsis": (lambda t: lambda s, b, h, q, k: s + t[..., k][q], {"t": draw(15, SQ, SK)}),
    "a transposed view": (lambda t: lambda s, b, h, q, k: s + t.T[q, k], {"t": draw(15, SK, SQ)}),
    "an expanded view": (lambda t: lambda s, b, h, q, k: s + t.expand(H, SK)[h, k], {"t": draw(16, 1, SK)}),
    "a constant index": (lambda t: lambda s, b, h, q, k: s + t[-1, k] + t[0, q], {"t": draw(17, 3, SK)}),
    "a value of other tensors": (lambda t: lambda s, b, h, q, k: s + (t * 2).exp()[k], {"t": draw(16, SK) / 4}),
    "float64": (lambda t: lambda s, b, h, q, k: s + t[k], {"t": draw(16, SK).double()}),
    "bytes": (lambda t: lambda s, b, h, q, k: s + t[k], {"t": torch.arange(SK, dtype=torch.uint8) % 3}),
    "nested functions": (lambda t: lambda s, b, h, q, k: nested(0.5, t[h])(nested(2.0, 1.0)(s)), {"t": draw(5, H)}),
    "a partial": (lambda t: functools.partial(_partial, table=t), {"t": draw(5, H)}),
    "arithmetic": (
        lambda: lambda s, b, h, q, k: (1 - s) / 2 + (q // 3 - k % 5) * 0.1 + -s.abs() ** 2 * 0.01 + 2**-s - q / (k + 1),
        {},
    ),
    "functions": (
        lambda: lambda s, b, h, q, k: (
            torch.sigmoid(s) + s.exp().sqrt() + torch.sin(s) * torch.cos(s) + torch.floor(s) + torch.relu(s)
            + torch.rsqrt(s * s + 1) + torch.exp2(s) + torch.log(s.abs() + 1) + torch.nn.functional.silu(s)
            + torch.nn.functional.softplus(s) + torch.expm1(s * 0.1) + torch.square(s) + torch.reciprocal(s * s + 1)
        ) * 0.1,
        {},
    ),
    "bounds": (lambda: lambda s, b, h, q, k: torch.clamp(s, -1, 1) + s.clamp(max=0.5) + torch.maximum(s, s * 0.1), {}),
    "truths": (
        lambda: lambda s, b, h, q, k: torch.where(
            torch.logical_and(q > k, torch.logical_or(h == 1, ~(b != 0))) | (q == k), s, s - 1
        ),
        {},
    ),
    "conversions": (lambda: lambda s, b, h, q, k: s + ((q - k).to(s.dtype) / 8).to(torch.int32).float() + (q > k), {}),
    "rank 0 on the left": (lambda t: lambda s, b, h, q, k: t * s + t - t / (s * s + 1), {"t": torch.tensor(0.5)}),
    "a part of heads": (lambda slope: lambda s, b, h, q, k: ramp(h, s, slope), {"slope": draw(18, H)}),
    "slopes by powers": (lambda: lambda s, b, h, q, k: s + (k - q) * torch.exp2(-((h + 1) * 8.0 / H)), {}),
    "trigonometry": (lambda: lambda s, b, h, q, k: torch.sin(torch.cos(s)) * s.sin() + torch.tan(b), {}),
    "activations": (
        lambda: lambda s, b, h, q, k: (
            torch.nn.functional.leaky_relu(s, 0.2) + torch.nn.functional.elu(s, alpha=0.5)
            + torch.nn.functional.relu6(s) + torch.nn.functional.hardtanh(s, -0.5, 0.75)
            + torch.nn.functional.logsigmoid(s)
            + torch.nn.functional.gelu(s, approximate="tanh") + torch.sinh(s * 0.1) + torch.cosh(s * 0.1)
            + torch.lerp(s, s * s, 0.25)
        ) * 0.2,
        {},
    ),
    "bits of positions": (
        lambda: lambda s, b, h, q, k: s + (q & 3) * 0.1 + (k >> 2) * 0.01 + (7 & (q - k)) + (b << 1), {},
    ),
    "an index of an index": (
        lambda starts, doc: lambda s, b, h, q, k: torch.where(q - starts[doc[q]] >= k - starts[doc[k]], s, -torch.inf),
        {"starts": torch.tensor([0, 20, 40], dtype=torch.int32), "doc": torch.arange(SK) // 20},
    ),
    "a tensor as an index": (
        lambda t, which: lambda s, b, h, q, k: s + t[b][h][which, q],
        {"t": draw(19, B, H, 3, SK), "which": torch.tensor(1)},
    ),
    "halves by truths": (
        lambda late: lambda s, b, h, q, k: torch.where(late[q] == late[k], s, -torch.inf),
        {"late": torch.arange(SK) > 30},
    ),
    "a limit of scores": (
        lambda most: lambda s, b, h, q, k: torch.where((s <= most[b]) | (k == 0), s, -torch.inf),
        {"most": draw(20, B) + 1},
    ),
    "an index of zeros": (
        lambda t: lambda s, b, h, q, k: s + t[b, h.new_zeros(h.shape), q, k], {"t": draw(21, B, 1, SQ, SK)},
    ),
    "where of the score": (lambda: lambda s, b, h, q, k: s.where(q >= k, s * 0.5), {}),
    "where of the score, by a number": (lambda: lambda s, b, h, q, k: (s + 1).where(condition=q >= k, other=-2.0), {}),
    "where of a tensor": (
        lambda t: lambda s, b, h, q, k: s + t.where(q >= k, s) + t.where(condition=h == 1, other=k),
        {"t": torch.tensor(2.0)},
    ),
    "where of positions": (lambda: lambda s, b, h, q, k: s + q.where(q >= k, k) / 8 + (q > 3).where(h > 0, k > 3), {}),
    "where by names": (
        lambda t: lambda s, b, h, q, k: (
            torch.where(condition=q >= k, input=s, other=t) + torch.where(q > 3, s, other=0.5)
            + torch.where(h > 1, self=1, other=s) + torch.where(other=s, condition=k > 9, input=t)
        ),
        {"t": torch.tensor(2.0)},
    ),
    "division towards zero": (
        lambda: lambda s, b, h, q, k: (
            s + torch.div(q - k, 3, rounding_mode="trunc") + torch.div(q, k - 60, rounding_mode="trunc") * 0.25
            + torch.fmod(k - q, 5) + torch.div(q, k + 1, rounding_mode="trunc") + (q - k).fmod(k + 1) * 0.125
            + (q - k).fmod(-7) + torch.div(s, 0.75, rounding_mode="trunc") + torch.fmod(s, 0.75)
        ) * 0.25,
        {},
    ),
    "parts of reals": (
        lambda: lambda s, b, h, q, k: s + torch.frac(s) + torch.round(s * 2) + s.round() + torch.round((q - k) / 2), {},
    ),
    "numbers that are none": (
        lambda t: lambda s, b, h, q, k: (
            torch.where(torch.isnan(t[k]), s, s * 2) + torch.where(t[k].isfinite() & ~q.isnan(), 1.0, s)
            + torch.nan_to_num(t[k], posinf=2.0, neginf=-3.0) + torch.isinf(t[k])
        ),
        {"t": torch.tensor([0.5, float("nan"), float("inf"), -float("inf")]).repeat(SK // 4)},
    ),
    "sums of exponentials": (
        lambda t: lambda s, b, h, q, k: torch.logaddexp(s, t[h]) + torch.logaddexp(t[h], s * 20), {"t": draw(23, H)},
    ),
    "sums of no exponentials": (
        lambda n, t: lambda s, b, h, q, k: (
            torch.logaddexp(n[k].float().log(), n[k].float().log()) + torch.logaddexp(s, t[k]) * 0.5
        ),
        {"n": torch.arange(SK) % 4, "t": torch.tensor([-torch.inf, 0.5, 1.0, -torch.inf]).repeat(SK // 4)},
    ),
    "types and shapes": (
        lambda: lambda s, b, h, q, k: (
            (s + 0.5).type(torch.int32) + q.type_as(s) / 8 + s.new_tensor(0.25) + q.new_tensor(3.5) + s.view(())
            + k.reshape(()) + s.dim() + q.numel() + s[...] + torch.full_like(s, 0.5) + (q.detach() > 3)
        ) * 0.25,
        {},
    ),
    "a tensor's type": (
        lambda t: lambda s, b, h, q, k: s + t.type_as(s) + t.round() + t.to(q.dtype), {"t": torch.tensor(2.7)},
    ),
    "integers of 31 bits": (
        lambda t: lambda s, b, h, q, k: (
            s + (q * 1000003 * (k + 1)) % 7 * 0.25 + (t[k] * 40000 * t[q] < 7) + (q - k) * 2**24 / 2**24
        ),
        {"t": torch.arange(SK)},
    ),
    "rows": (
        lambda t: lambda s, b, h, q, k: (
            s + t[q].mean(-1) + t[k].prod(0) + t[q].amax(-1) - t[k].amin(dim=-1) + torch.sum(t[q] * t[k], dim=-1)
            + t[q].square().sum(-1, keepdim=True).squeeze(-1) + (t[q] - 2).norm(dim=-1) + torch.norm(t[k] + 2)
            + torch.linalg.vector_norm(t[q] + t[k] + 4) + sum(x * x for x in t[q]) + sum(-t[k][1:])
        ) * 0.25,
        {"t": draw(24, SK, 3).tanh()},
    ),
    "products of rows": (
        lambda t, w: lambda s, b, h, q, k: s + t[q] @ t[k] + torch.inner(t[q], w) + w @ t[q] + (w * t[k]).sum(),
        {"t": draw(25, SK, 2), "w": draw(26, 2)},
    ),
    "functions of rows": (
        lambda t: lambda s, b, h, q, k: s + (
            torch.where(t[q] > t[k], t[q], s).sum() + torch.exp(t[q]).sum() + torch.maximum(t[q], t[k]).sum(-1)
            + torch.clamp(t[q], min=-0.5).sum() + (t[k] > 0).sum() + t[q].to(torch.int32).sum(dtype=torch.float32)
        ) * 0.125,
        {"t": draw(27, SK, 3)},
    ),
    "rows of integers": (
        lambda t, at: lambda s, b, h, q, k: s + at[q].sum() * 0.1 + (at[k] > 1).sum() + t[at[q][1]],
        {"t": draw(28, 4), "at": torch.arange(SK * 3).view(SK, 3) % 4},
    ),
    "a loop over an axis": (lambda t: lambda s, b, h, q, k: s + sum(x[k] for x in t[h]), {"t": draw(29, H, 3, SK)}),
    "bits beside numbers": (
        lambda: lambda s, b, h, q, k: s + 0.0625 * (
            (q & 5) + (9 & k) + (q | 9) + (k ^ 6) + ((q - k) & 13) + ((q - k) | 3) + ((q - k) ^ 2) + ((q > k) & 1)
            + ((q > k) | 4) + torch.bitwise_and(q, 6) + torch.bitwise_or(k, 2) + torch.bitwise_xor(q, 1) + (q & 0)
        ),
        {},
    ),
    "properties": (lambda: lambda s, b, h, q, k: s.T + q.real / 8 + (1 if s.is_cuda else 0.5) + q.is_cpu, {}),
    "a sum as an index": (lambda t: lambda s, b, h, q, k: s + t[q + k], {"t": draw(22, SQ + SK)}),
}  # fmt: skip


def _partial(s, b, h, q, k, table):
    return s + table[h]


def causal(b, h, q, k):
    return q >= k


def _between(x, low, high):
    return (low <= x) & (x < high)


def document_of(doc):
    return lambda b, h, q, k: doc[q] == doc[k]


DOCUMENT = torch.arange(SK) // 9
LENGTHS = torch.tensor([31, 52])
ROWS = torch.arange(SK * 3).view(SK, 3) * 5 % 9
OFFSETS = torch.tensor([0, 9, 30, 52])
MASKS = {
    "causal": causal,
    "no mask": pytorch.noop_mask,
    "window": lambda b, h, q, k: (q - k < 9) & (q >= k),
    "both sides": lambda b, h, q, k: (q - k).abs() <= 5,
    "prefix": pytorch.or_masks(causal, lambda b, h, q, k: k < 7),
    "prefix of each sequence": pytorch.or_masks(causal, lambda b, h, q, k: k < LENGTHS[b] - 30),
    "documents": document_of(DOCUMENT),
    "causal documents": pytorch.and_masks(causal, document_of(DOCUMENT)),
    "padding": lambda b, h, q, k: k < LENGTHS[b],
    "dilated": lambda b, h, q, k: (q - k) % 3 == 0,
    "dilated by a power of each head": lambda b, h, q, k: (q - k) % (3**h) == 0,
    "a power by the query": lambda b, h, q, k: k < 2 ** (q % 7),
    "a power of a captured number": lambda b, h, q, k: k % 3 ** (LENGTHS[b] % 4) == 0,
    "negative powers": lambda b, h, q, k: k <= q + 5 ** (2 - h),
    "a power as an index": lambda b, h, q, k: k < LENGTHS[2**b - 1],
    "powers beyond 32 bits": lambda b, h, q, k: k < 10 ** (q % 18),
    "blocks of three": lambda b, h, q, k: q // 3 == k // 3,
    "neighbours": lambda b, h, q, k: ((q // SIDE - k // SIDE).abs() <= 2) & ((q % SIDE - k % SIDE).abs() <= 2),
    "heads": lambda b, h, q, k: (h % 2 == 0) | (q >= k),
    "jagged": lambda b, h, q, k: torch.where(q < OFFSETS[1], 0, 1) == torch.where(k < OFFSETS[1], 0, 1),
    "none for some": lambda b, h, q, k: (q > 3) & (k > 3),
    "global": lambda b, h, q, k: (q < 2) | (k < 2) | ((q - k).abs() < 4),
    "not": lambda b, h, q, k: torch.logical_not(q < k),
    "a row that has a number": lambda b, h, q, k: (ROWS[q] == (k % 9).unsqueeze(-1)).any(dim=-1),
    "rows that lack a number": lambda b, h, q, k: torch.all(ROWS[q] != (k % 9).unsqueeze(0)) | torch.any(ROWS[k] == 7),
    "between two bounds": lambda b, h, q, k: _between(k % 9, *ROWS[q][:2]),
    "exclusive": lambda b, h, q, k: (q > 9) ^ (k > 9),
}
