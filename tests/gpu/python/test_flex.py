# SPDX-License-Identifier: Apache-2.0
"""flex_attention on a GPU: the functions that tests/python/test_torch_flex*.py has on the CPU, in float32, and longer
sequences in bfloat16, whose masks are found in blocks."""

import sys
from pathlib import Path

import pytest
import strobe.torch
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
with torch.device("cuda"):  # where the functions' tensors are made
    from expression_reference import attention, draw
    from flex_check import check
    from flex_functions import MASKS, SCORES
    from flex_gym import GYM_MASKS, GYM_SCORES
    from flex_named import PYTORCH_MASKS, PYTORCH_SCORES

ALL_SCORES, ALL_MASKS = SCORES | PYTORCH_SCORES | GYM_SCORES, MASKS | PYTORCH_MASKS | GYM_MASKS
del ALL_SCORES["activations"]  # vmap of PyTorch 2.11 has no logsigmoid on a GPU: the reference fails


@pytest.fixture(autouse=True)
def _on_the_gpu():
    with torch.device("cuda"):
        yield


@pytest.mark.parametrize("name", ALL_SCORES)
def test_scores(name):
    score, leaves = ALL_SCORES[name]
    check(score, None, leaves.values(), tolerance=1e-4)


@pytest.mark.parametrize("name", ALL_MASKS)
def test_masks(name):
    check(None, ALL_MASKS[name], [], tolerance=1e-4)


SEQLEN = 400
with torch.device("cuda"):
    DOCUMENT = torch.arange(SEQLEN, dtype=torch.int32) // 150
    SLOPE, BIAS = draw(70, 4), draw(71, SEQLEN)


def documents(b, h, q, k):
    return (DOCUMENT[q] == DOCUMENT[k]) & (q >= k)


LONG = {
    "documents": (None, documents),
    "a document that is hidden": (None, lambda b, h, q, k: (DOCUMENT[q] == DOCUMENT[k]) & (DOCUMENT[q] != 1)),
    "a prefix": (None, lambda b, h, q, k: (k <= q) | (k < 77)),
    "every third": (None, lambda b, h, q, k: (q - k) % 3 == h % 3),
    "ALiBi in documents": (lambda s, b, h, q, k: s + SLOPE[h] * (k - q) / SEQLEN, documents),
    "a bias": (lambda s, b, h, q, k: s + BIAS[k], None),
}


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", LONG)
def test_long_sequences_in_bfloat16(name, head_dim):
    score, mask = LONG[name]
    q, k, v, d_out = (draw(seed, 2, 4, SEQLEN, head_dim, dtype=torch.bfloat16) for seed in range(4))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    blocks = mask and strobe.torch.create_block_mask(mask, None, None, SEQLEN, SEQLEN, device="cuda")
    out = strobe.torch.flex_attention(*inputs, score, blocks)
    out.backward(d_out)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted, _ = attention(*(x.transpose(1, 2) for x in exact), score, mask)
    wanted.backward(d_out.double().transpose(1, 2))
    found = [out.detach(), *(x.grad for x in inputs)]
    for ours, theirs in zip(found, [wanted.detach().transpose(1, 2), *(x.grad for x in exact)], strict=True):
        # Rounded probabilities, dS and results: a few units in the last place of the largest element.
        error = (ours.double() - theirs).abs().max()
        assert error <= 4 * torch.finfo(torch.bfloat16).eps * theirs.abs().max()
