// One call of forward and backward as a value, the tensors that it needs, and its check against the float64 reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu/reference/reference.h"
#include "guarded_tensor.h"
#include "strobe/attention.h"

namespace strobe::test {

/// What the inputs hold.
enum class Values : std::uint8_t {
  normal,    // N(0, 1)
  outliers,  // N(0, 1) + N(0, 100) * Bernoulli(0.001), as in the FlashAttention-3 paper
  small,     // N(0, 1) * 2^-10
  sharp,     // N(0, 1) * 4: the softmax has one winner
};

/// Lengths of one side. Empty vectors stand for views that are not given.
struct SideLengths {
  std::int64_t rows = 0;                 // seqlen when batched, the total when packed
  std::vector<std::int32_t> cu_seqlens;  // given: packed
  std::vector<std::int32_t> seqused;
  std::int64_t max_seqlen = -1;
};

struct AttentionCase {
  DType dtype = DType::float32;
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_k = 1;
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;
  SideLengths q;
  SideLengths k;
  AttentionOptions options;
  bool wants_lse = true;
  bool has_d_lse = true;
  Values values = Values::normal;
  Layout layout = Layout::contiguous;
  std::uint64_t seed = 0;
};

/// Everything about the case in one line.
std::string describe(const AttentionCase& attention);

/// The tensors of a case. Inputs are drawn from the case's seed; rows that no sequence uses and keys that no query
/// sees hold NaN, outputs are NaN all over.
class CaseTensors {
 public:
  explicit CaseTensors(const AttentionCase& attention);
  CaseTensors(const CaseTensors&) = delete;
  CaseTensors& operator=(const CaseTensors&) = delete;

  ForwardArguments forward_arguments() const;
  BackwardArguments backward_arguments() const;

  GuardedTensor q, k, v, o, lse, d_o, d_lse, dq, dk, dv;

 private:
  GuardedTensor make(const SideLengths& side, std::int64_t heads, std::int64_t head_dim);
  GuardedTensor make_lse();
  void fill(GuardedTensor& tensor);
  void forget_unused_rows();
  Sequences sequences() const;

  AttentionCase case_;
  Random random_;
};

/// Runs forward and, where the case has LSE, backward from its o and lse. Expects every element within its bound and
/// every guard intact.
void expect_case_matches_reference(const AttentionCase& attention, const Execution& execution = {});

/// The same with inputs that the test has changed.
void expect_tensors_match_reference(CaseTensors& tensors, const AttentionCase& attention,
                                    const Execution& execution = {});

/// Expects every element of `actual` within its bound.
void expect_within_bound(const GuardedTensor& actual, const reference::BoundedTensor& expected, const char* name);

}  // namespace strobe::test
