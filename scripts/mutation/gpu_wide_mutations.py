# SPDX-License-Identifier: Apache-2.0
"""The ways in which run_gpu.py breaks wide heads, latent rows, row formats and sparse attention."""

from gpu_mutations import KERNELS, KernelMutation

FORWARD = f"{KERNELS}/sm90/forward"
AUXILIARY = f"{KERNELS}/auxiliary"
LARGE_SCORES = "GpuLargeScoresWith.RandomScoresHaveTheSameRoundingsInBothPasses/sm90_float16_d512"
MODELS = "GpuSparseFormats.RowsOfModelsMatchReference"
SCATTER = "GpuSparseBackward.SharesAreAddedInTheOrderOfTheQueries/sm90"

WIDE_HEADS = [
    KernelMutation(
        "O of wide heads is not shrunk when a row's maximum grows",
        f"{FORWARD}/consume/wide.h",
        "if (grew && (flags & kFirstOfTile) == 0) {\n        flags |= kGrew;",
        "if (false) {\n        flags |= kGrew;",
        LARGE_SCORES,
    ),
    KernelMutation(
        "both rows of a thread hand on the first one's correction",
        f"{FORWARD}/consume/wide.h",
        "message.correction[warpgroup_row(r)] = softmax.correction[r];",
        "message.correction[warpgroup_row(r)] = softmax.correction[0];",
        LARGE_SCORES,
    ),
    KernelMutation(
        "P of every block is read where the first one's was handed on",
        f"{FORWARD}/consume/wide_output.h",
        "p_ + p_at_.stage * (Probabilities<C>::kBytes >> 4)",
        "p_",
        "GpuWideText.WithoutOptions/sm90",
    ),
    KernelMutation(
        "the second part of a warpgroup's O is multiplied with the first one's columns of V",
        f"{FORWARD}/consume/wide_values.h",
        "part * (tile_bytes(C.block_n, kPartColumns<C>) >> 4)",
        "0 * part",
        "GpuWideText.WithoutOptions/sm90",
    ),
    KernelMutation(
        "the second part of a warpgroup's O is stored over the other warpgroup's first",
        f"{FORWARD}/consume/wide_values.h",
        "(part * C.output_warpgroups + output_warpgroup<C>()) * kSharedColumns",
        "(output_warpgroup<C>() * kOutputParts<C> + part) * kSharedColumns",
        "GpuLatentRows.ReplaysSplitTheKeysOfTheLengthsThatTheyRead/sm90",
    ),
    KernelMutation(
        "the rotated columns of latent rows out of small pages are their first",
        f"{FORWARD}/produce/wide_shared_rows.h",
        "shared, C.head_dim_v, stage",
        "shared, 0, stage",
        "GpuLatentRows.ReplaysSplitTheKeysOfTheLengthsThatTheyRead/sm90",
    ),
]

ROW_FORMATS = [
    KernelMutation(
        "two groups of columns share a scale",
        f"{KERNELS}/sequence/stored_pieces.h",
        "column / kPart.scale_columns * kBytes",
        "column / (2 * kPart.scale_columns) * kBytes",
        f"{MODELS}/sm80",
    ),
    KernelMutation(
        "all rows of a page have the first one's tail",
        f"{KERNELS}/sequence/stored_cache.h",
        "start + tails + (static_cast<long long>(in_page) * heads + head) * F.tail_bytes",
        "start + tails + static_cast<long long>(head) * F.tail_bytes",
        f"{MODELS}/sm90",
    ),
    KernelMutation(
        "converted rows of a panel's second half lie over those of its first",
        f"{FORWARD}/produce/wide_format_rows.h",
        "first_ + first_row() + row_at(step, i) * kRowsAtOnce",
        "first_ + first_row() + i * kRowsAtOnce",
        f"{MODELS}/sm90",
    ),
]

SPARSE = [
    KernelMutation(
        "topk_length is the first query's",
        f"{AUXILIARY}/listed_places.h",
        "params.topk_length[query.offset(params.length_strides)]",
        "params.topk_length[0]",
        f"{MODELS}/sm80",
    ),
    KernelMutation(
        "a source, or the sink, is merged by the LSE of the first",
        f"{AUXILIARY}/combine.h",
        "const MergedTensor& tensor = params.parts[part];\n    const float lse = ",
        "const MergedTensor& tensor = params.parts[0];\n    const float lse = ",
        f"{MODELS}/sm80",
    ),
    KernelMutation(
        "shares of a warp's places are added from the last to the first",
        f"{AUXILIARY}/sparse_backward/sum.h",
        "const int at = first_ + __ffs(static_cast<int>(own_)) - 1;\n    own_ &= own_ - 1;",
        "const int last = 31 - __clz(static_cast<int>(own_));\n    const int at = first_ + last;\n"
        "    own_ &= ~(1U << last);",
        SCATTER,
    ),
    KernelMutation(
        "places of later queries are found before those of earlier ones",
        f"{AUXILIARY}/sparse_backward/sum.h",
        "before += other < warp ? found.of_warp[other] : 0;",
        "before += other > warp ? found.of_warp[other] : 0;",
        SCATTER,
    ),
]

WIDE = [*WIDE_HEADS, *ROW_FORMATS, *SPARSE]
