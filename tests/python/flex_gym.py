# SPDX-License-Identifier: Apache-2.0
"""What the masks and scores of attention-gym say, by its names of what makes them."""

import functools
import math

import torch
from expression_reference import draw
from flex_functions import MASKS, SCORES, SK, SQ, B, H, causal
from flex_named import DOCUMENT, SOME, STARTS
from torch.nn.attention import flex_attention as pytorch


def all_of(*conditions):
    return functools.reduce(lambda x, y: x & y, conditions)


def grouped(mask, size):
    """A mask in groups of `size` positions that do not see each other."""
    return lambda b, h, q, k: (q // size == k // size) & mask(b, h, q % size, k % size)


def of_noise_and_text(length, block):
    """Noise, then text: blocks of noise see themselves and the text before, blocks of text the text up to theirs."""

    def mask(b, h, q, k):
        noise_q, noise_k = q < length, k < length
        block_q, block_k = q % length // block, k % length // block
        to_text = ~noise_k & torch.where(noise_q, block_q > block_k, block_q >= block_k)
        return (noise_q & noise_k & (block_q == block_k)) | to_text

    return mask


def of_images(which, bounds):
    """Text from `bounds[0]` to `bounds[1]` of a key's image."""

    def mask(b, h, q, k):
        of_image = bounds[which[k]]
        return (of_image[0] <= q) & (q < of_image[1])

    return mask


def of_tree(prefix, ancestors):
    def mask(b, h, q, k):
        node = (k - prefix).clamp(min=0, max=len(ancestors) - 1)
        return (k < prefix) | ((k < prefix + len(ancestors)) & ancestors[q, node])

    return mask


def of_drafts(prefix, size):
    def mask(b, h, q, k):
        at = k - prefix
        return (at < 0) | ((q // size == at // size) & (at % size <= q % size))

    return mask


def in_rows(index, columns):
    return index // columns, index % columns


def in_tiles(index, columns, height, width):
    """Row and column of a position in tiles that follow one another."""
    down, right = in_rows(index // (height * width), columns // width)
    y, x = in_rows(index % (height * width), width)
    return down * height + y, right * width + x


def neighbours(place, shape, reach):
    """Keys at most `reach` from the query, or from the nearest place that has all its neighbours."""

    def mask(b, h, q, k):
        pairs = zip(place(q), place(k), shape, strict=True)
        return all_of(*((x.clamp(reach, n - 1 - reach) - y).abs() <= reach for x, y, n in pairs))

    return mask


def tiles_nearby(place, shape, reach, seen, text):
    """Tiles of a picture of `seen` positions, and text behind it, which sees all and is seen."""

    def mask(b, h, q, k):
        pairs = zip(place(q), place(k), shape, strict=True)
        near = all_of(*((x.clamp(reach, n - 1 - reach) - y).abs() <= reach for x, y, n in pairs))
        end = seen + text
        return torch.where(q < seen, torch.where(k < seen, near, k < end), k < end)

    return mask


def tile_2d(index):
    return in_rows(index // 6, 2)


def tile_3d(index):
    time, rest = in_rows(index // 4, 6)
    return (time, *in_rows(rest, 3))


def across_frames(prompt, length, most):
    """The same place in frames of `length` positions, and a prompt."""

    def mask(b, h, q, k):
        apart = torch.abs((q - prompt) % length - (k - prompt) % length)
        return (q < prompt) | (k < prompt) | (apart < most)

    return mask


def behind_a_prefix(document, starts, prefix_of):
    def mask(b, h, q, k):
        own = document[q]
        shared = prefix_of[own]
        before = (own != shared) & (k >= starts[shared]) & (k < starts[shared + 1])
        return before | ((starts[own] <= k) & (k <= q))

    return mask


def of_chosen_tiles(chosen, sizes, length):
    def mask(b, h, q, k):
        tile = k // length
        found = (chosen[b, h, q // length] == tile.unsqueeze(-1)).any(dim=-1)
        return found & (k % length < sizes[tile])

    return mask


def of_tile_map(seen, sizes, length):
    return lambda b, h, q, k: seen[b, h, q // length, k // length] & (k % length < sizes[k // length])


def document_mask(inner):
    def mask(b, h, q, k):
        own, other = DOCUMENT[q], DOCUMENT[k]
        return (own == other) & inner(b, h, q - STARTS[own], k - STARTS[other])

    return mask


SIZES = torch.tensor([8, 5, 8, 3, 8, 8, 4], dtype=torch.int32)
CHOSEN = torch.arange(B * H * 5 * 3).view(B, H, 5, 3) * 3 % 7
TILE_MAP = SOME[: B * H * 5, :7].reshape(B, H, 5, 7)
BOUNDS = torch.tensor([[0, 9], [5, 30], [20, 40], [0, 40]], dtype=torch.int32)

GYM_MASKS = {
    "batchify_mask_mod": grouped(causal, 12),
    "generate_block_diffusion_mask": of_noise_and_text(26, 5),
    "causal_mask": causal,
    "generate_dilated_sliding_window": lambda b, h, q, k: ((q - k).abs() <= 9) & ((q - k).abs() % 3 == 0),
    "generate_doc_mask_mod": document_mask(causal),
    "generate_packed_causal_doc_mask_mod": lambda b, h, q, k: (STARTS[DOCUMENT[q]] <= k) & (k <= q),
    "generate_vision_cross_attention_mask_mod": of_images(torch.arange(SK) // 13, BOUNDS),
    "generate_global_sliding_window": pytorch.or_masks(
        lambda b, h, q, k: (q - k).abs() <= 3, lambda b, h, q, k: SOME[0][q] | SOME[0][k]
    ),
    "generate_jetspec_tree_causal_mask_mod": of_tree(12, SOME[:SQ, :SQ]),
    "generate_jetspec_training_mask_mod": of_drafts(12, 5),
    "generate_natten": neighbours(functools.partial(in_rows, columns=8), (7, 8), 2),
    "generate_tiled_natten": neighbours(functools.partial(in_tiles, columns=8, height=3, width=4), (9, 8), 2),
    "generate_prefix_lm_mask": MASKS["prefix"],
    "generate_shared_prefix_mask_mod": behind_a_prefix(DOCUMENT, STARTS, torch.tensor([0, 0, 2, 0])),
    "generate_sliding_window": pytorch.and_masks(lambda b, h, q, k: q - k <= 9, causal),
    "generate_sta_mask_mod_2d": tiles_nearby(tile_2d, (4, 2), 1, 48, 3),
    "generate_sta_mask_mod_3d": tiles_nearby(tile_3d, (2, 2, 3), 1, 48, 4),
    "generate_spatial_head_mask_mod": lambda b, h, q, k: (q < 4) | (k < 10) | ((q - k).abs() < math.floor(13 / 8) * 8),
    "generate_temporal_head_mask_mod": across_frames(4, 8, 2),
    "generate_vsa_mask_mod": of_chosen_tiles(CHOSEN, SIZES, 8),
    "generate_vsa_block_map_mask_mod": of_tile_map(TILE_MAP, SIZES, 8),
    "generate_vsa_padding_mask_mod": lambda b, h, q, k: k % 8 < SIZES[k // 8],
}  # fmt: skip


def edges(table):
    """The mean of what a table has for the kinds of edges along a path."""
    kinds = torch.arange(B * SQ * SK * 3).view(B, SQ, SK, 3).int() % 5
    length = torch.arange(B * SQ * SK).view(B, SQ, SK).int() % 4
    steps = [table[:, i] for i in range(3)]

    def score(s, b, h, q, k):
        count = length[b, q, k]
        taken = (torch.where(count > i, x[h, kinds[b, q, k, i]], 0.0) for i, x in enumerate(steps))
        return s + sum(taken) / torch.clamp(count, min=1)

    return score


def rotary_part(of_queries, of_keys):
    return lambda s, b, h, q, k: s + 0.5 * torch.dot(of_queries[b, h, q], of_keys[b, h // 2, k])


def sandwich(table, scale):
    return lambda s, b, h, q, k: s + table[q - k + SK - 1] * scale[h]


GYM_SCORES = {
    "generate_activation_score_mod": (lambda: lambda s, b, h, q, k: torch.log(torch.relu(s) + 1.0), {}),
    "generate_alibi_bias": SCORES["slopes by powers"],
    "generate_graphormer_spatial_bias": (
        lambda table, apart: lambda s, b, h, q, k: s + table[h, apart[b, q, k]],
        {"table": draw(60, H, 6), "apart": torch.arange(B * SQ * SK).view(B, SQ, SK).int() % 6},
    ),
    "generate_graphormer_edge_bias": (edges, {"table": draw(61, H, 3, 5)}),
    "generate_mla_rope_score_mod": (
        rotary_part, {"of_queries": draw(62, B, H, SQ, 8), "of_keys": draw(63, B, H // 2, SK, 8)},
    ),
    "generate_sandwich_bias": (sandwich, {"table": draw(64, SQ + SK), "scale": draw(65, H)}),
    "generate_tanh_softcap": SCORES["softcap"],
}  # fmt: skip
