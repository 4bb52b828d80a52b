#include <algorithm>
#include <limits>

#include "cpu/reference/forward_row.h"
#include "cpu/reference/parallel.h"
#include "cpu/reference/reference.h"

namespace strobe::reference {
namespace {

// One head of one sequence.
void forward_head(const ForwardArguments& arguments, const AttentionOptions& options, const ArithmeticModel& model,
                  const SequenceRows& rows, std::int64_t head, ForwardResult& result) {
  const std::int64_t heads = heads_of(arguments.q);
  const std::int64_t head_k = head / (heads / heads_of(arguments.k));
  const std::int64_t head_dim = head_dim_of(arguments.q);
  const std::int64_t head_dim_v = head_dim_of(arguments.v);
  const std::vector<double> q = read_head(arguments.q, rows.first_q, rows.seqlen_q, head);
  const std::vector<double> k = read_head(arguments.k, rows.first_k, rows.seqlen_k, head_k);
  const std::vector<double> v = read_head(arguments.v, rows.first_k, rows.seqlen_k, head_k);
  const std::vector<double> k_transposed = transpose(k, rows.seqlen_k, head_dim);
  for (std::int64_t query = 0; query < rows.seqlen_q; ++query) {
    const Scores scores = scores_of(q.data() + query * head_dim, k_transposed, head_dim,
                                    visible_keys(query, rows, options), rows.seqlen_k, options, model);
    const ForwardRow row = forward_row(scores, v, head_dim_v, arguments.o.dtype, model);
    const std::int64_t o_index = ((rows.first_q + query) * heads + head) * head_dim_v;
    std::copy(row.o.begin(), row.o.end(), result.o.value.begin() + o_index);
    std::copy(row.o_bound.begin(), row.o_bound.end(), result.o.bound.begin() + o_index);
    const std::int64_t index = lse_index(rows.first_q + query, head, heads, rows_per_entry(arguments.q));
    result.lse.value[index] = row.lse;
    result.lse.bound[index] = row.lse_bound;
  }
}

}  // namespace

ForwardResult forward(const ForwardArguments& arguments, const AttentionOptions& options, const ArithmeticModel& model,
                      int threads) {
  const std::int64_t heads = heads_of(arguments.q);
  const std::int64_t row_heads = element_count(arguments.q) / head_dim_of(arguments.q);
  const std::int64_t outputs = row_heads * head_dim_of(arguments.v);
  ForwardResult result;
  result.o = {std::vector<double>(outputs, 0.0), std::vector<double>(outputs, 0.0)};
  result.lse = {std::vector<double>(row_heads, -std::numeric_limits<double>::infinity()),
                std::vector<double>(row_heads, 0.0)};
  const std::vector<SequenceRows> sequences = sequence_rows(arguments.q, arguments.k, arguments.sequences);
  run_tasks(static_cast<std::int64_t>(sequences.size()) * heads, threads, [&](std::int64_t task) {
    forward_head(arguments, options, model, sequences[task / heads], task % heads, result);
  });
  return result;
}

}  // namespace strobe::reference
