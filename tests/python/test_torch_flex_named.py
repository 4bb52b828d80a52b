# SPDX-License-Identifier: Apache-2.0
"""flex_attention with what PyTorch's tests and attention-gym have: against float64, or an error that says why."""

import re
from pathlib import Path

import pytest
import strobe.torch
import torch
from flex_check import check
from flex_functions import H, K, Q, V
from flex_gym import GYM_MASKS, GYM_SCORES
from flex_named import PYTORCH_MASKS, PYTORCH_SCORES
from strobe.torch.flex import TraceError
from torch.nn.attention import flex_attention as pytorch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
SCORES, MASKS = PYTORCH_SCORES | GYM_SCORES, PYTORCH_MASKS | GYM_MASKS


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    score, leaves = SCORES[name]
    check(score, None, leaves.values())


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    check(None, MASKS[name], [])


class Straight(torch.autograd.Function):
    """Its gradient is not that of what it computes."""

    @staticmethod
    def forward(a):
        return torch.round(a)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Marked(Straight):
    """Whose context looks at its tensors."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(*inputs)


def spread(code):
    """The even bits of a position, moved together."""
    code = code & 0x55555555
    return (code | (code >> 1)) & 0x33333333


REFUSED = {
    "test_autograd_function_in_score_mod": (
        lambda s, b, h, q, k: Straight.apply(s), r"a torch.autograd.Function, .*\(write out what its forward does\)",
    ),
    "_tanh_approx": (lambda s, b, h, q, k: Marked.apply(s), "a torch.autograd.Function, whose backward"),
    "gelu": (lambda s, b, h, q, k: torch.nn.functional.gelu(s), r'approximate="none" \(write approximate="tanh"\)'),
    "generate_morton_natten": (lambda s, b, h, q, k: s * (spread(q) == spread(k)), r"`\|` of integers, where none is"),
    "a rotary part of 64 columns": (lambda s, b, h, q, k: s + Q.repeat(1, 1, 1, 4)[b, h, q].sum(), "16 are the most"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    score_mod, reason = REFUSED[name]
    place = rf"score_mod `<lambda>` \({__file__}, line \d+\) cannot be written as text: "
    with pytest.raises(TraceError, match=place + f".*{reason}"):
        strobe.torch.flex_attention(Q, K, V, score_mod)


def test_return_max_is_refused():
    with pytest.raises(NotImplementedError, match="max_scores of each row is not there"):
        strobe.torch.flex_attention(Q, K, V, return_aux=pytorch.AuxRequest(max_scores=True))


def test_gradients_that_are_switched_off_are_refused():
    learnt = torch.ones(H, requires_grad=True)

    def of_the_score(s, b, h, q, k):
        with torch.no_grad():
            half = s * 0.5
        return s - half

    def of_a_tensor(s, b, h, q, k):
        with torch.no_grad():
            x = learnt[h]
        return s * x

    for function, reason in ((of_the_score, "`mul` without grad"), (of_a_tensor, "a tensor that requires a gradient")):
        with pytest.raises(TraceError, match=f"{function.__name__}.*{reason}"):
            strobe.torch.flex_attention(Q, K, V, function)
    with torch.no_grad():
        out = strobe.torch.flex_attention(Q, K, V, of_the_score)
        rounded = strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: Straight.apply(s))
    torch.testing.assert_close(out, strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s * 0.5))
    assert torch.equal(rounded, strobe.torch.flex_attention(Q, K, V, lambda s, b, h, q, k: s.round()))


def test_masks_and_positions_have_no_gradients_to_switch_off():
    @torch.no_grad()
    def mask(b, h, q, k):
        return (q >= k) | (k % 3 == 0)

    def scaled(s, b, h, q, k):
        with torch.no_grad():
            distance = (q - k).abs()
        return s - distance * 0.125

    check(lambda: scaled, mask, [])


def test_a_branch_of_pythons_is_taken_in_each_call():
    """A function whose closure changes between calls is another text."""
    add, scale = True, torch.tensor(3)

    def score_mod(s, b, h, q, k):
        return s + scale if add else s * scale

    for add in (True, False):
        other = (lambda s, b, h, q, k: s + 3) if add else (lambda s, b, h, q, k: s * 3)
        wanted = strobe.torch.flex_attention(Q, K, V, other)
        assert torch.equal(strobe.torch.flex_attention(Q, K, V, score_mod), wanted)


def test_docs_name_these_functions():
    """Each function that runs is in the row of the page that says so, and no other."""
    rows = re.findall(r"^\| (?:scores|masks) of (PyTorch|attention-gym) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    named = sorted(name for _, cell in rows for name in re.findall(r"`(\w+)`", cell))
    assert named == sorted((*SCORES, *MASKS))
