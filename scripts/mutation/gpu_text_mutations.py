# SPDX-License-Identifier: Apache-2.0
"""The ways in which run_gpu.py breaks the walk over blocks of a mask and what a forward keeps of a text."""

from gpu_mutations import KERNELS, SCORE, KernelMutation

WALK = f"{KERNELS}/sm90/forward/tile/blocks.h"
TAGS = f"{KERNELS}/sm90/forward/produce/key_tags.h"
VISITED = f"{KERNELS}/sm90/forward/consume/visited_blocks.h"
TAKEN = f"{KERNELS}/sm90/scheduler/taken_tiles.h"
FRAGMENT = f"{SCORE}/modifiers/text_fragment.h"

TEXTS = [
    KernelMutation(
        "a walk passes over the block before",
        WALK,
        "~0U >> (kBits - 1 - (n - 1) % kBits)",
        "~0U >> (kBits - 1 - (n - 1) % kBits) >> 1",
        "BlockMask",
    ),
    KernelMutation(
        "a walk knows the first blocks alone",
        WALK,
        "states_ >> word % kWords * 8",
        "states_",
        "GpuText.MasksOfManyBlocks/sm90",
    ),
    KernelMutation(
        "blocks that a text shows in part are whole",
        WALK,
        "(of_row == kShownBlock ? 2U : 0U)",
        "(of_row != 0 ? 2U : 0U)",
        "GpuText.MasksOfLines/sm90",
    ),
    KernelMutation(
        "warps read the diagonals of the first one's rows",
        FRAGMENT,
        "Warps::warp() * kRowsPerFragment + fragment_row(0);",
        "fragment_row(0);",
        "GpuText.OfDiagonals/sm90",
    ),
    KernelMutation(
        "rows of all warps are the first one's",
        FRAGMENT,
        "kBuffers * kLineWords + Warps::warp() * kRowsPerFragment * kRowValues",
        "kBuffers * kLineWords",
        "GpuText.OfQueriesAndKeys/sm90",
    ),
    KernelMutation(
        "a text's columns are those of the block after",
        f"{SCORE}/modifiers/text.h",
        "position.k += first;",
        "position.k += first + block_n;",
        "GpuText.OfQueriesAndKeys/sm90",
    ),
    KernelMutation(
        "bits of a block's rows are those of the rows after",
        f"{SCORE}/modifiers/block_bits.h",
        "load(words + 8 * r * kBlockWordsOfRow",
        "load(words + 8 * (r ^ 1) * kBlockWordsOfRow",
        "GpuText.MasksOfDiagonals/sm90",
    ),
    KernelMutation(
        "of a block's columns the first are looked at alone",
        f"{SCORE}/modifiers/block_bits.h",
        "words_[r] = word >> column / kBlockWordsOfRow;",
        "words_[r] = word;",
        "GpuText.MasksOfDiagonals/sm90",
    ),
    KernelMutation(
        "bits of a block that is shown in part do not come with its keys",
        TAGS,
        "tag_.is_seen(row) && !tag_.is_whole(row)",
        "tag_.is_whole(row)",
        "GpuText.MasksOfDiagonals/sm90",
    ),
    KernelMutation(
        "consumers take blocks that are seen for such that are shown whole",
        VISITED,
        "tag_.is_whole(row_)",
        "tag_.is_seen(row_)",
        "GpuText.MasksOfLines/sm90",
    ),
    KernelMutation(
        "CTAs take every second tile",
        TAKEN,
        "number_ = gridDim.x + atomicAdd(ring_.taken.count, 1U);",
        "number_ = gridDim.x + 2 * atomicAdd(ring_.taken.count, 1U);",
        "GpuTakenTiles.OnAnyNumberOfMultiprocessorsHaveTheSameBits",
    ),
    KernelMutation(
        "tiles that a CTA took are another's",
        TAKEN,
        "taken_.owners[number_] != blockIdx.x",
        "taken_.owners[number_] == blockIdx.x",
        "GpuTakenTiles.KeepNaNOfOtherDocumentsOut",
    ),
]
