// SPDX-License-Identifier: Apache-2.0
// How long a call takes by each unit of a GPU: what explain() predicts, and what ranks candidates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "call/problem.h"
#include "gpu/plan/device.h"
#include "kernels/score/rule.h"

namespace strobe::gpu {

/// By which instructions a kernel multiplies.
enum class Products : unsigned char {
  mma,        // mma.sync of 16 bits
  warpgroup,  // WGMMA of 16 bits
  eight_bit,  // WGMMA of 8 bits
  tf32,       // mma.sync of tf32, three for each product of float32
};

/// What a kernel asks of a multiprocessor in one step: a block of rows by a block of keys.
struct StepWork {
  Products by = Products::warpgroup;
  double flops = 0.0;
  double scores = 0.0;
  double shared_bytes = 0.0;  // of shared memory, read or written, the products' operands included
  double sum_bytes = 0.0;     // of float32 that is added to sums in L2
};

/// A call's main kernel, and what surrounds it.
struct PlannedWork {
  ScoreRule rule;
  StepWork step;
  double steps = 0.0;           // of the multiprocessor that ends last; the starts and ends of its tiles count as steps
  double filled = 1.0;          // share of the multiprocessors that are at their tiles, on average until then
  double memory_bytes = 0.0;    // read and written by the main kernel
  double around_seconds = 0.0;  // of the kernels before and after it
  int launches = 1;
  // Shares of the exponentials' and of shared memory's time that no products run beside.
  double alone_exponentials = 0.0;
  double alone_shared_memory = 0.0;
  std::string_view assumes;  // what the host does not know: "that all blocks of the mask are visible"; empty: nothing
};

/// Seconds of each unit by itself.
struct PredictedTimes {
  double products = 0.0;
  double exponentials = 0.0;  // with the other arithmetic of a softmax
  double shared_memory = 0.0;
  double sums = 0.0;
  double memory = 0.0;
  double around = 0.0;          // before and after the main kernel, launches included
  double in_turn = 0.0;         // products, and the shares of other units beside which none run
  std::string_view bound_by{};  // the unit that takes the longest

  double seconds() const;
};

PredictedTimes predicted_times(const DeviceShape& shape, const PlannedWork& work);

/// Seconds in which memory moves so many bytes, and in which WGMMA computes so many FLOPs on all multiprocessors.
double memory_seconds(const DeviceShape& shape, double bytes);
double warpgroup_seconds(const DeviceShape& shape, double flops);

/// The steps of the multiprocessor that ends last, if tiles of `all` steps together are handed out one by one, the
/// longest first. Of tiles that are all as long some multiprocessors have one more than others.
double last_steps(double tiles, double all, double longest, const DeviceShape& shape);

/// The problem of sequences that all have the mean length, as far as the host knows it.
AttentionProblem of_mean_lengths(AttentionProblem problem);

/// What a prediction takes for granted of such a problem.
std::string_view assumption(const AttentionProblem& problem);

/// Rows of all heads, and bytes of an element.
double query_rows(const AttentionProblem& problem);
double key_rows(const AttentionProblem& problem);
double element_bytes(const AttentionProblem& problem);

/// Bytes of Q and O of all query rows, with LSE; and of the rows of K and V that some query sees.
double query_row_bytes(const AttentionProblem& problem);
double key_row_bytes(const AttentionProblem& problem);

/// Bytes that the kernels before a backward's main one move: O, dO and LSE of each row read, its numbers written, and
/// `more` bytes a row.
double prepare_bytes(const AttentionProblem& problem, double more);

/// Of one query head and sequence, in blocks of queries by blocks of keys that some query sees: all, and those of the
/// block of keys that most see, or of the block of queries that sees most.
struct BlockSteps {
  double all = 0.0;
  double longest = 0.0;

  /// A block of its own, which sees [begin, end).
  void add(std::int64_t begin, std::int64_t end, int block);
};
BlockSteps steps_of_keys(const AttentionProblem& problem, int block_m, int block_n);
BlockSteps steps_of_queries(const AttentionProblem& problem, int block_m, int block_n);

/// A line for the plan's text; empty where nothing is computed.
std::string explain_times(const DeviceShape& shape, const PlannedWork& work);

}  // namespace strobe::gpu
