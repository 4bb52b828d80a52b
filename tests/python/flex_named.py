# SPDX-License-Identifier: Apache-2.0
"""What the functions of PyTorch's tests of FlexAttention and those of attention-gym do, by their names there.

Names that begin with test_ are those of the tests whose functions have no name of their own.
"""

import functools
import math

import torch
from expression_reference import draw
from flex_functions import MASKS, SCORES, SK, SQ, B, H, causal
from torch.nn.attention import flex_attention as pytorch

Functional = torch.nn.functional
DOCUMENT = torch.arange(SK, dtype=torch.int32) // 13
STARTS = torch.tensor([0, 13, 26, 39, 52], dtype=torch.int32)
SOME = draw(30, SK, SK) > -0.25


def hidden_unless(mask, score=lambda s, *_: s):
    """A mask as a score of -inf."""
    return lambda s, b, h, q, k: torch.where(mask(b, h, q, k), score(s, b, h, q, k), -math.inf)


def within_documents(function):
    """A function whose positions count from the beginning of their document."""
    return lambda s, b, h, q, k: function(s, b, h, q - STARTS[DOCUMENT[q]], k - STARTS[DOCUMENT[k]])


def plane(index, columns=8):
    return index / columns, index % columns


def distances(places, scale):
    def score(s, b, h, q, k):
        apart = (places[0][q] - places[1][k]).pow(2).sum(-1).sqrt()
        return torch.exp(-apart / (scale[h].square() + 1)) * s

    return score


def two_steps(s, b, h, q, k):
    """A score in place, whose branch is Python's."""
    s = s + (q - k)
    return torch.where(q <= k, s, -math.inf)


class ContinuousBias(torch.nn.Module):
    """A table that a layer computes, by an index of two positions, and gates of queries and keys."""

    def __init__(self, table, gate, means):
        super().__init__()
        self.table, self.gate, self.means = table, gate, means
        self.register_buffer("index", torch.arange(SK * SK).view(SK, SK) % 9)
        self.register_buffer("first", torch.tensor(2))

    def score_mod(self):
        table, gate = self.table.tanh(), self.gate.sigmoid()
        of_queries, of_keys = self.means.unbind(2)

        def score(s, b, h, q, k):
            counts = (q >= self.first) & (k >= self.first)
            weight = gate[h] * (of_queries[b, h, q] + of_keys[b, h, k])
            return s + counts.to(s.dtype) * weight * table[self.index[q, k], h]

        return score


def added(of_position):
    """A captured tensor's share of a score, by its index."""
    return lambda t: lambda s, b, h, q, k: s + of_position(t, b, h, q, k)


ONE, TWO = draw(31, SQ + SK), draw(32, SK, SK)
OF_HEADS, FOUR = draw(33, H, SK, SK), draw(34, B, H, SK, SK)

PYTORCH_SCORES = {
    "_identity": SCORES["identity"],
    "_times_two": SCORES["times two"],
    "_squared": SCORES["squared"],
    "_causal": SCORES["causal"],
    "_inverse_causal": (lambda: lambda s, b, h, q, k: torch.where(q <= k, s, float("-inf")), {}),
    "_rel_bias": (lambda: lambda s, b, h, q, k: s + (q - k), {}),
    "_rel_causal": (lambda: hidden_unless(causal, lambda s, b, h, q, k: s + (q - k)), {}),
    "_alibi_bias": SCORES["slopes by powers"],
    "_head_offset": SCORES["head scale"],
    "_trig": (lambda: lambda s, b, h, q, k: torch.cos(s).sin() + torch.tan(b), {}),
    "_trig2": (lambda: lambda s, b, h, q, k: s.cos() * s.sin() + b.tan(), {}),
    "_windowed": (lambda: hidden_unless(lambda b, h, q, k: q + 10 >= k), {}),
    "document_masking_causal": (lambda: hidden_unless(MASKS["causal documents"]), {}),
    "index_multiple": (added(lambda t, b, h, q, k: t[b][q]), {"t": draw(35, B, SK)}),
    "index_weird1": (added(lambda t, b, h, q, k: t[0][b, h][q]), {"t": draw(36, 3, B, H, SK)}),
    "index_weird2": SCORES["a tensor as an index"],
    "test_skip_odd_keys": (lambda: hidden_unless(lambda b, h, q, k: k % 2 == 0), {}),
    "composed_score_mod": (lambda: two_steps, {}),
    "all_bias": (
        lambda x, y, z, w: lambda s, b, h, q, k: s + x[k] + y[q] + z[h] + w[b],
        {"x": draw(37, SK), "y": draw(38, SQ), "z": draw(39, H), "w": draw(40, B)},
    ),
    "seq_mask_mod": SCORES["halves by truths"],
    "test_load_from_bias_seq_only": (added(lambda t, b, h, q, k: t[q, k]), {"t": TWO}),
    "test_load_from_bias_seq_batch": (added(lambda t, b, h, q, k: t[b, q, k]), {"t": draw(41, B, SQ, SK)}),
    "test_load_from_bias_head_seq_batch": SCORES["bias"],
    "test_load_rel_bias": (added(lambda t, b, h, q, k: t[(q - k) + SK]), {"t": ONE}),
    "test_load_from_view_buffer": (
        added(lambda t, b, h, q, k: t.view(B, H, SQ, 7, 1).squeeze(-1)[b, h, q, k // 8]),
        {"t": draw(42, B * H, SQ, 7, 1)},
    ),
    "test_dependent_causal_bidirectional": (
        lambda n: hidden_unless(lambda b, h, q, k: (q >= k) | ((q <= n[b]) & (k <= n[b]))),
        {"n": torch.tensor([9, 30], dtype=torch.int32)},
    ),
    "natten_mask": (
        lambda: hidden_unless(
            lambda b, h, q, k: functools.reduce(
                torch.logical_or, [(x - y).abs() <= 1 for x, y in zip(plane(q), plane(k), strict=True)]
            )
        ),
        {},
    ),
    "score_mod_func": (lambda: lambda s, b, h, q, k: s - q // (1 + k), {}),
    "silu_score": (lambda: lambda s, b, h, q, k: Functional.silu(s), {}),
    "njt_score_mod": (lambda: within_documents(SCORES["causal"][0]()), {}),
    "test_padded_dense_causal": (
        lambda n: lambda s, b, h, q, k: torch.where((s <= n[b]) & (q >= k), s, -math.inf),
        {"n": torch.arange(B, dtype=torch.int32) + 1},
    ),
    "score_mod_scale": (lambda t: lambda s, b, h, q, k: s + t, {"t": torch.ones((), dtype=torch.int32)}),
    "test_captured_reduction": (added(lambda t, b, h, q, k: t[b].sum(dim=-1)), {"t": draw(43, B, 8)}),
    "test_new_empty_mask_mod": (
        added(lambda t, b, h, q, k: t[b, h.new_zeros(h.shape), q, k]), {"t": SOME[None, None].expand(B, 1, SK, SK)},
    ),
    "head_bias": SCORES["head offset"],
    "rel_pos_1d": SCORES["a sum as an index"],
    "rel_pos_2d": (added(lambda t, b, h, q, k: t[q][k]), {"t": TWO}),
    "rel_pos_2d_transposed": (added(lambda t, b, h, q, k: t[k, q]), {"t": TWO}),
    "rel_pos_3d_transposed": (added(lambda t, b, h, q, k: t[h, k, q]), {"t": OF_HEADS}),
    "test_modular_indexing": (
        added(lambda t, b, h, q, k: (2 * t).view(B, H, SK, SK)[b, h, q, k]), {"t": FOUR.view(B, SK, SK, H)},
    ),
    "euclidean_dist_pos_embed": (distances, {"places": draw(44, 2, SK, 3), "scale": draw(45, H)}),
    "apply_multiplicative_bias": (lambda t: lambda s, b, h, q, k: s * t[q], {"t": draw(46, SK)}),
    "test_symbol_closure_in_score_mod": (lambda: lambda s, b, h, q, k: s + B, {}),
    "test_custom_score_mod_layout_freeze": (
        lambda table, gate, means: ContinuousBias(table, gate, means).score_mod(),
        {"table": draw(47, 9, H), "gate": draw(48, H), "means": draw(49, B, H, 2, SK)},
    ),
    "test_relative_1d_bias": (added(lambda t, b, h, q, k: t[torch.abs(q - k)]), {"t": ONE}),
    "test_head_specific_bias": (added(lambda t, b, h, q, k: t[h, q, k]), {"t": OF_HEADS}),
    "test_batch_head_bias": (added(lambda t, b, h, q, k: t[b, h, q, k]), {"t": FOUR}),
    "test_local_window_bias": (added(lambda t, b, h, q, k: t[torch.clamp(q - k + 8, 0, 16)]), {"t": draw(50, 17)}),
    "test_global_tokens_bias": (added(lambda t, b, h, q, k: t[k]), {"t": draw(51, SK)}),
    "test_weird_bias": (added(lambda t, b, h, q, k: t[b, h, torch.tensor(0), q]), {"t": draw(52, B, H, 4, SK)}),
    "test_indirect_bias": (
        lambda t, at: lambda s, b, h, q, k: s + t[at[q]], {"t": draw(53, SK), "at": torch.arange(SK) * 7 % SK},
    ),
    "test_symmetric_bias": (added(lambda t, b, h, q, k: t[q] + t[k]), {"t": draw(54, SK)}),
    "test_head_specific_gate": (
        lambda t: lambda s, b, h, q, k: s * torch.sigmoid(t[h].to(torch.float32)), {"t": draw(55, H).half()},
    ),
    "test_distinct_biases": (
        lambda x, y: lambda s, b, h, q, k: s + x[q] + y[k], {"x": draw(56, SK), "y": draw(57, SK)},
    ),
}  # fmt: skip

HALF = torch.tensor([False, True]).repeat(H // 2)
OFFSET = torch.tensor(7, dtype=torch.int32)
PYTORCH_MASKS = {
    "noop_mask": pytorch.noop_mask,
    "_causal_mask": causal,
    "_inverse_causal_mask": lambda b, h, q, k: q <= k,
    "causal_mask_slidewindow_mod": lambda b, h, q, k: (q >= k) & (q <= k + 12),
    "test_mask_mod_combiners": pytorch.or_masks(
        pytorch.and_masks(causal, lambda b, h, q, k: q - k <= 9), lambda b, h, q, k: q + 20 < k
    ),
    "test_document_masking_edge_case": lambda b, h, q, k: DOCUMENT.expand(B, SK)[b, q] == DOCUMENT.expand(B, SK)[b, k],
    "test_fully_masked_out_rows": lambda b, h, q, k: q < SQ // 2,
    "global_causal": lambda b, h, q, k: (q >= k) & (q - k > 6),
    "_flex_attention_mask": functools.partial(
        lambda b, h, q, k, lengths: (q < lengths[b]) & (k < lengths[b]), lengths=torch.tensor([17, 33])
    ),
    "batch_flip_causal": lambda b, h, q, k: (q >= k) & (b % 2 == 0),
    "test_free_symbol_dynamic": lambda b, h, q, k: ~SOME[b, q],
    "_opaque_mask": lambda b, h, q, k: q < (SQ // 8 + SK // 8) * 3,
    "causal_offset_mask": lambda b, h, q, k: (q + torch.zeros(8)[b] * 128) >= k,
    "doc_mask_mod": lambda b, h, q, k: (
        DOCUMENT[q.clamp(0, DOCUMENT.shape[0] - 1)] == DOCUMENT[k.clamp(0, DOCUMENT.shape[0] - 1)]
    ),
    "test_block_mask_reuse_with_weird_mask": lambda b, h, q, k: (k < 5) | (k >= 40),
    "test_inspect_bug": functools.partial(lambda b, h, q, k, most: (q - k).abs() < most, most=torch.tensor(4.5)),
    "test_non_divisible_offset_mask": lambda b, h, q, k: k >= q + OFFSET,
    "test_head_dependent_mask_mod": lambda b, h, q, k: HALF[h] & (q >= k),
}
