# SPDX-License-Identifier: Apache-2.0
"""Reads and writes beyond a tensor, a workspace or a row: what tests/guarded must notice by itself."""

from tree import Mutation

MEMORY = [
    Mutation(
        "memory: the last columns of a row are read as a whole vector",
        "src/cpu/kernels/pack-inl.h",
        "for (; i + kLanes <= count; i += kLanes) hn::StoreU(load(Floats(), from + i), Floats(), to + i);",
        "for (; i < count; i += kLanes) hn::StoreU(load(Floats(), from + i), Floats(), to + i);",
    ),
    Mutation(
        "memory: a merge reads one column more",
        "src/cpu/merge.cpp",
        "for (std::int64_t c = 0; c < columns; ++c) sums[static_cast<std::size_t>(c)] += weight * to_float(from[c]);",
        "for (std::int64_t c = 0; c <= columns; ++c) sums[static_cast<std::size_t>(c)] += weight * to_float(from[c]);",
    ),
    Mutation(
        "memory: a merge writes one column more",
        "src/cpu/merge.cpp",
        "for (std::int64_t c = 0; c < columns; ++c) to[c] = from_float<To>(sums[static_cast<std::size_t>(c)]);",
        "for (std::int64_t c = 0; c <= columns; ++c) to[c] = from_float<To>(sums[static_cast<std::size_t>(c)]);",
    ),
    Mutation(
        "memory: an append copies one byte more",
        "src/cpu/append.cpp",
        "static_cast<std::size_t>(count * row_elements * size)",
        "static_cast<std::size_t>(count * row_elements * size + 1)",
    ),
    Mutation(
        "memory: unused rows are cleared one byte too far",
        "src/cpu/call.cpp",
        "static_cast<std::size_t>(columns) * size_of(tensor.dtype)",
        "static_cast<std::size_t>(columns) * size_of(tensor.dtype) + 1",
    ),
    Mutation(
        "memory: values behind packed sequences are cleared one column too far",
        "src/cpu/quantize.cpp",
        "std::memset(of_head + row * q.to.strides[0], 0, static_cast<std::size_t>(columns));",
        "std::memset(of_head + row * q.to.strides[0], 0, static_cast<std::size_t>(columns) + 1);",
    ),
    Mutation(
        "memory: the workspace of few queries lacks the chunks that are not whole",
        "src/cpu/few_queries.cpp",
        "(problem.row_invariant ? 0 : problem.total_k / kFewQueriesChunk) + problem.batch",
        "(problem.row_invariant ? 0 : problem.total_k / kFewQueriesChunk) + 1",
    ),
    Mutation(
        "memory: the workspace of a backward lacks the blocks that are not whole",
        "src/cpu/plan.cpp",
        "(head_groups(problem) * (rows / block + problem.batch)).value()",
        "(head_groups(problem) * (rows / block + 1)).value()",
    ),
]
