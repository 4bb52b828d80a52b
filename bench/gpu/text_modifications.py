# SPDX-License-Identifier: Apache-2.0
"""Scores and masks that texts.py measures: each as a text, as an option where one says the same, and as functions of
PyTorch's FlexAttention."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isqrt, log
from typing import Any

import torch
from torch import Tensor

CAP, DOCUMENT, WINDOW, PREFIX, BUCKETS = 30.0, 700, 1024, 512, 32


@dataclass
class Modification:
    """`learned`: captures of the text whose gradients are measured, too. `option`: arguments of strobe.torch.attention,
    with cu_seqlens_q those of a packed call."""

    name: str
    score: str | None = None
    mask: str | None = None
    captures: dict[str, Tensor] = field(default_factory=dict)
    learned: list[Tensor] = field(default_factory=list)
    option: dict[str, Any] | None = None
    score_mod: Callable[..., Tensor] | None = None
    mask_mod: Callable[..., Tensor] | None = None

    @property
    def text(self) -> dict[str, Any]:
        return {"score": self.score, "mask": self.mask, "captures": self.captures or None}


def bucket_of(distance: Tensor) -> Tensor:
    """T5's, of causal attention: one for each of 16 distances, then ever wider ones."""
    far = 16 + torch.log(distance.clamp(min=1).float() / 16) / log(8) * 16
    return torch.where(distance < 16, distance.clamp(min=0).float(), far.clamp(max=BUCKETS - 1.0)).int()


def causal(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def masks(seqlen: int, batch: int) -> list[Modification]:
    document = (torch.arange(seqlen, device="cuda") // DOCUMENT).int()
    starts = torch.arange(0, seqlen, DOCUMENT, device="cuda", dtype=torch.int32)
    offsets = torch.cat([starts + i * seqlen for i in range(batch)] + [starts.new_tensor([batch * seqlen])])
    side = isqrt(seqlen)
    return [
        Modification("plain", option={}),
        Modification("causal", mask="k <= q", option={"causal": True}, mask_mod=causal),
        Modification(
            "documents, causal",
            mask="k <= q && document[k] == document[q]",
            captures={"document": document},
            option={
                "causal": True,
                "cu_seqlens_q": offsets,
                "cu_seqlens_k": offsets,
                "max_seqlen_q": DOCUMENT,
                "max_seqlen_k": DOCUMENT,
            },
            mask_mod=lambda _b, _h, q, k: (q >= k) & (document[q] == document[k]),
        ),
        Modification(
            "window",
            mask=f"k <= q && q - k < {WINDOW}",
            option={"window": (WINDOW - 1, 0)},
            mask_mod=lambda _b, _h, q, k: (q >= k) & (q - k < WINDOW),
        ),
        Modification(
            "prefix, causal",
            mask=f"k <= q || k < {PREFIX}",
            mask_mod=lambda _b, _h, q, k: (q >= k) | (k < PREFIX),
        ),
        Modification(
            "every fourth key",
            mask="k <= q && (q - k) % 4 == 0",
            mask_mod=lambda _b, _h, q, k: (q >= k) & ((q - k) % 4 == 0),
        ),
        Modification(
            "2-D neighbourhood",
            mask=f"abs(q / {side} - k / {side}) <= 8 && abs(q % {side} - k % {side}) <= 8",
            mask_mod=lambda _b, _h, q, k: ((q // side - k // side).abs() <= 8) & ((q % side - k % side).abs() <= 8),
        ),
    ]


def scores(batch: int, heads: int, seqlen: int) -> list[Modification]:
    slope = torch.exp2(-torch.arange(1, heads + 1, device="cuda") * 8.0 / heads)
    distance = torch.arange(seqlen, device="cuda")
    bias = torch.randn(heads, seqlen, seqlen, device="cuda", dtype=torch.bfloat16) * 0.1
    diagonals = torch.randn(heads, 2 * seqlen - 1, device="cuda") * 0.1
    table = torch.randn(heads, BUCKETS, device="cuda") * 0.1
    bucket = bucket_of(distance)
    gate = torch.cumsum(-torch.rand(batch, heads, seqlen, device="cuda") * 0.01, -1)

    def cap(score: Tensor, *_: Tensor) -> Tensor:
        return CAP * torch.tanh(score / CAP)

    def softcap(name: str, **mask: Any) -> Modification:
        return Modification(name, f"{CAP} * tanh(score / {CAP})", score_mod=cap, **mask)

    return [
        softcap("softcap", option={"softcap": CAP}),
        softcap("softcap, causal", mask="k <= q", mask_mod=causal, option={"softcap": CAP, "causal": True}),
        Modification(
            "ALiBi, causal",
            "score + slope[head] * (k - q)",
            "k <= q",
            {"slope": slope},
            option={"alibi_slopes": slope, "causal": True},
            score_mod=lambda s, _b, h, q, k: s + slope[h] * (k - q),
            mask_mod=causal,
        ),
        Modification(
            "bias",
            "score + bias[head][q][k]",
            captures={"bias": bias},
            option={"bias": bias[None]},
            score_mod=lambda s, _b, h, q, k: s + bias[h, q, k],
        ),
        Modification(
            "relative bias",
            f"score + bias[head][q - k + {seqlen - 1}]",
            captures={"bias": diagonals},
            learned=[diagonals],
            score_mod=lambda s, _b, h, q, k: s + diagonals[h, q - k + seqlen - 1],
        ),
        Modification(
            "T5's buckets, causal",
            "score + table[head][bucket[max(q - k, 0)]]",
            "k <= q",
            {"table": table, "bucket": bucket},
            learned=[table],
            score_mod=lambda s, _b, h, q, k: s + table[h, bucket_of(q - k)],
            mask_mod=causal,
        ),
        Modification(
            "forgetting, causal",
            "score + gate[batch][head][q] - gate[batch][head][k]",
            "k <= q",
            {"gate": gate},
            learned=[gate],
            score_mod=lambda s, b, h, q, k: s + gate[b, h, q] - gate[b, h, k],
            mask_mod=causal,
        ),
    ]


def modifications(batch: int, heads: int, seqlen: int) -> dict[str, Modification]:
    every = masks(seqlen, batch) + scores(batch, heads, seqlen)
    return {modification.name: modification for modification in every}
