# SPDX-License-Identifier: Apache-2.0
"""The ways in which run_gpu.py breaks the walk over blocks of a mask and what a forward keeps of a text."""

from gpu_mutations import KERNELS, SCORE, KernelMutation

WALK = f"{KERNELS}/sm90/forward/tile/blocks.h"
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
        "of_row == kShownBlock",
        "of_row != 0",
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
]
