// SPDX-License-Identifier: Apache-2.0
// Where workspaces that hold something for every query row keep it. A head's rows lie in blocks of block_m, the blocks
// of one sequence after those of the one before; each sequence begins a block of its own. Packed sequences are placed
// so that nobody needs to know the lengths of others: sequence b begins at block cu_seqlens_q[b] / block_m + b, which
// leaves at most one block between two sequences. Plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/sequence/params.h"

namespace strobe::sequence {

/// Blocks of the longest sequence; at least 1, as kernels divide by them.
constexpr int longest_blocks(int seqlen_q, int block_m) {
  return seqlen_q == 0 ? 1 : (seqlen_q + block_m - 1) / block_m;
}

/// Blocks of one head, of all sequences: enough for whatever lengths add up to total_q.
constexpr int query_blocks(bool packed_q, int sequences, int seqlen_q, int total_q, int block_m) {
  if (sequences == 0) return 0;
  return packed_q ? total_q / block_m + sequences : sequences * longest_blocks(seqlen_q, block_m);
}

/// The first block of a sequence. That of the sequence behind the last one is where the last one's end at most.
constexpr int first_query_block(const SequenceParams& params, int sequence, int block_m) {
  return params.cu_seqlens_q != nullptr ? params.cu_seqlens_q[sequence] / block_m + sequence
                                        : sequence * longest_blocks(params.seqlen_q, block_m);
}

}  // namespace strobe::sequence
