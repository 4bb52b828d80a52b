# SPDX-License-Identifier: Apache-2.0
"""The gallery of docs/expressions.md: each text means what its name says, with its gradients."""

import html
import math
import re
from pathlib import Path

import expression_reference
import pytest
import strobe.torch
import torch
from expression_reference import copies, draw

BATCH, HEADS, ROWS, DIM = 2, 4, 70, 8
PAGE = Path(__file__).resolve().parents[2] / "docs" / "expressions.md"

SLOPE, TEMPERATURE = draw(1, HEADS), draw(2, HEADS) + 2
BIAS, GATE = draw(3, HEADS, 1023), draw(4, BATCH, HEADS, ROWS)
BUCKET = torch.arange(ROWS).sqrt().int()
DOCUMENT = torch.arange(ROWS).div(20, rounding_mode="floor").expand(BATCH, ROWS)
PREFIX = torch.tensor([5, 30])
CAPTURES = {
    "slope": SLOPE, "temperature": TEMPERATURE, "bias": BIAS, "gate": GATE, "bucket": BUCKET, "document": DOCUMENT,
    "prefix": PREFIX,
}  # fmt: skip


def causal(b, h, q, k):
    return k <= q


# What a name says of the scores, with the captures by name, and of the mask.
MEANINGS = {
    "ALiBi": (lambda c, s, b, h, q, k: s + c["slope"][h] * (k - q), None),
    "T5's relative bias": (lambda c, s, b, h, q, k: s + c["bias"][h, BUCKET[(q - k).clamp(min=0)]], None),
    "learned relative bias": (lambda c, s, b, h, q, k: s + c["bias"][h, k - q + 511], None),
    "Forgetting attention (FoX)": (lambda c, s, b, h, q, k: s + c["gate"][b, h, q] - c["gate"][b, h, k], causal),
    "log scaling": (lambda c, s, b, h, q, k: s * (q + 2).double().log() / 6, causal),
    "cap by tanh": (lambda c, s, b, h, q, k: 30 * (s / 30).tanh(), None),
    "temperature of a head": (lambda c, s, b, h, q, k: s * c["temperature"][h], None),
    "documents": (None, lambda b, h, q, k: (k <= q) & (DOCUMENT[b, k] == DOCUMENT[b, q])),
    "causal documents with a shared prefix": (
        None,
        lambda b, h, q, k: (k < 5) | ((k <= q) & (DOCUMENT[b, k] == DOCUMENT[b, q])),
    ),
    "prefix": (None, lambda b, h, q, k: (k < PREFIX[b]) | (k <= q)),
    "dilated": (None, lambda b, h, q, k: ((q - k) % 4 == 0) & (k <= q)),
    "2-D neighbourhood, rows of 32": (
        None,
        lambda b, h, q, k: ((q // 32 - k // 32).abs() <= 3) & ((q % 32 - k % 32).abs() <= 3),
    ),
    "sigmoid attention (normalize none)": (lambda c, s, b, h, q, k: (s - math.log(ROWS)).sigmoid(), None),
    "HSTU (normalize none)": (lambda c, s, b, h, q, k: s * s.sigmoid() / ROWS, causal),
    "sinks and a window": (None, lambda b, h, q, k: (k <= q) & ((q - k < 1024) | (k < 4))),
}


def gallery():
    """(name, score, mask) of each row of the page's table."""
    section = PAGE.read_text(encoding="utf-8").split("## A gallery")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[html.unescape(re.sub("</?code>|`", "", cell)).strip() for cell in row] for row in rows]
    return [tuple(row) for row in cells if len(row) == 3]


def test_the_page_and_this_list_have_the_same_names():
    assert {name for name, _, _ in gallery()} == set(MEANINGS)


@pytest.mark.parametrize(("name", "score", "mask"), gallery(), ids=[row[0] for row in gallery()])
def test_a_text_means_what_its_name_says(name, score, mask):
    read = {key: x for key, x in CAPTURES.items() if re.search(rf"\b{key}\[", score + mask)}
    shape = (BATCH, ROWS, HEADS, DIM)
    tensors = [draw(seed, *shape) for seed in (11, 12, 13)]
    d_out = draw(14, *shape)

    given = copies(*tensors, *read.values(), dtype=torch.float32)
    normalize = "none" if "(normalize none)" in name else "softmax"
    options = {key: text for key, text in (("score", score), ("mask", mask)) if text} | {"normalize": normalize}
    out = strobe.torch.attention(*given[:3], captures=dict(zip(read, given[3:], strict=True)) or None, **options)
    leaves = [x for x in given if x.requires_grad and (x.dim() == 4 or score)]
    gradients = torch.autograd.grad((out * d_out).sum(), leaves)

    exact = copies(*tensors, *read.values())
    by_name = dict(zip(read, exact[3:], strict=True))
    score_mod, mask_mod = MEANINGS[name]
    wanted, _ = expression_reference.attention(
        *exact[:3],
        None if score_mod is None else (lambda *x: score_mod(by_name, *x)),
        mask_mod,
        normalize=normalize,
    )
    wanted_leaves = [x for x in exact if x.requires_grad and (x.dim() == 4 or score)]
    wanted_gradients = torch.autograd.grad((wanted * d_out).sum(), wanted_leaves)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-5)
    for gradient, exact_gradient in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-4, atol=2e-5)
