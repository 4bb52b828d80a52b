// SPDX-License-Identifier: Apache-2.0
// The error of attention in fewer bits, on one set of tensors.
#pragma once

#include <string>
#include <vector>

#include "io/host_tensor.h"
#include "strobe/attention.h"
#include "strobe/error_budget.h"
#include "strobe/quantize.h"

namespace strobe::program {

/// A way to quantise Q, K and V, by name.
struct Ingredients {
  const char* name = "";
  QuantizeOptions options;
};

/// From what ships elsewhere to the default.
std::vector<Ingredients> ingredients();

/// The faster one first.
inline constexpr DType kEightBitElements[] = {DType::float8_e4m3, DType::int8};

/// K and V alone in 8 bits, and which of a head's rows share a scale.
struct CacheFormat {
  DType element;
  ScaleUnit unit;  // head, group or row
};

inline constexpr CacheFormat kCacheFormats[] = {
    {DType::float8_e4m3, ScaleUnit::head}, {DType::float8_e4m3, ScaleUnit::group}, {DType::float8_e4m3, ScaleUnit::row},
    {DType::int8, ScaleUnit::head},        {DType::int8, ScaleUnit::group},        {DType::int8, ScaleUnit::row}};

/// "head", "32 keys" or "row".
const char* name_of_unit(const CacheFormat& format);

/// "K, V alone: int8, a scale per row"
std::string name_of(const CacheFormat& format);

/// q, k and v, what exact attention makes of them, and what a call on fewer bits does.
class EightBitCalls {
 public:
  /// float32 tensors [batch, seqlen, heads, head_dim]; `options` outlive this.
  EightBitCalls(io::HostTensor q, io::HostTensor k, io::HostTensor v, const AttentionOptions& options,
                const Execution& execution);

  /// float32 attention: off by less than a thousandth of what 8 bits are.
  Status find_exact();

  Status run_eight_bit(const QuantizeOptions& quantize);
  Status run_bfloat16();

  /// q in bfloat16 on a cache of K and V. append() writes it, and of rows finds the scales, too.
  Status run_cache(const CacheFormat& format);

  Result<QuantizationPlan> plan(QuantizationMode mode) const;

  /// The root mean square of the last run's error; `relative`: over that of O.
  double error(bool relative = false) const;

  /// Of the last run.
  const float* output() const { return reinterpret_cast<const float*>(o_.bytes.data()); }

  /// Of find_exact().
  const io::HostTensor& exact() const { return exact_; }

 private:
  Status run(ForwardArguments arguments, io::HostTensor& o) const;
  Status run_with_bfloat16_queries(ForwardArguments arguments);

  const AttentionOptions& options_;
  const Execution execution_;
  io::HostTensor q_, k_, v_, exact_, o_;
};

}  // namespace strobe::program
