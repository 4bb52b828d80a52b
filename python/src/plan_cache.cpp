#include "plan_cache.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace strobe::python {
namespace {

/// What a plan is made from, as numbers.
class PlanKey {
 public:
  PlanKey(const ForwardArguments& call, const AttentionOptions& options, const Execution& execution) {
    add_all(call.q, call.k, call.v, call.o, call.lse, call.max_logits, call.q_descale, call.k_descale, call.v_descale,
            call.page_table, call.sequences, call.modifiers, options, execution);
  }

  PlanKey(const BackwardArguments& call, const AttentionOptions& options, const Execution& execution) {
    add_all(call.q, call.k, call.v, call.o, call.lse, call.d_o, call.d_lse, call.dq, call.dk, call.dv, call.d_bias,
            call.d_sink, call.sequences, call.modifiers, options, execution);
  }

  bool operator==(const PlanKey& other) const {
    return std::equal(words_.begin(), words_.begin() + size_, other.words_.begin(), other.words_.begin() + other.size_);
  }

  std::size_t hash() const {
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      // Multiplication by 2^64 over the golden ratio mixes low bits upwards, the shift high ones down.
      hash = (hash ^ static_cast<std::uint64_t>(words_[i])) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 32;
    }
    return hash;
  }

 private:
  template <class... Parts>
  void add_all(const Parts&... parts) {
    (add(parts), ...);
  }

  void add(std::int64_t word) { words_[size_++] = word; }
  void add(float value) { add(std::bit_cast<std::int32_t>(value)); }
  void add(std::int32_t word) { add(static_cast<std::int64_t>(word)); }
  void add(bool flag) { add(static_cast<std::int64_t>(flag)); }

  /// Rank, dtype and device, then the extents. The rank says how many, so that equal words are equal views.
  template <class Pointer>
  void add(const BasicTensorView<Pointer>& view) {
    add(static_cast<std::int64_t>(view.rank) | static_cast<std::int64_t>(view.dtype) << 8 |
        static_cast<std::int64_t>(view.device.type) << 16 | static_cast<std::int64_t>(view.device.index) << 32);
    for (int axis = 0; axis < view.rank; ++axis) add(view.shape[static_cast<std::size_t>(axis)]);
  }

  void add(const Sequences& sequences) {
    add_all(sequences.cu_seqlens_q, sequences.cu_seqlens_k, sequences.seqused_q, sequences.seqused_k,
            sequences.max_seqlen_q, sequences.max_seqlen_k);
  }

  void add(const ScoreModifiers& modifiers) {
    add_all(modifiers.alibi_slopes, modifiers.bias, modifiers.sink, modifiers.block_mask, modifiers.block_size);
  }

  void add(const AttentionOptions& options) {
    add_all(options.scale.has_value(), options.scale.value_or(0.0F), static_cast<std::int64_t>(options.causal),
            options.window.left, options.window.right, options.chunk, options.softcap, options.dropout,
            options.deterministic);
  }

  void add(const Execution& execution) { add_all(static_cast<std::int64_t>(execution.engine), execution.threads); }

  static constexpr std::size_t kViews = 20;  // of a backward, the larger pass
  static constexpr std::size_t kNumbers = 14;
  std::array<std::int64_t, kViews * (1 + kMaxRank) + kNumbers> words_{};
  std::size_t size_ = 0;
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const { return key.hash(); }
};

// More than the layers and phases of a model have. A full cache begins anew: at one call in as many, that costs
// nothing.
constexpr std::size_t kMostPlans = 256;

template <class Arguments>
Result<Plan> find_or_make(const Arguments& arguments, const AttentionOptions& options, const Execution& execution) {
  static auto& plans = *new std::unordered_map<PlanKey, Plan, PlanKeyHash>;
  const PlanKey key(arguments, options, execution);
  if (const auto at = plans.find(key); at != plans.end()) return at->second;
  std::optional<Result<Plan>> plan;
  {
    const nanobind::gil_scoped_release released;
    plan = make_plan(arguments, options, execution);
  }
  if (plan->ok()) {
    if (plans.size() >= kMostPlans) plans.clear();
    plans.insert_or_assign(key, **plan);
  }
  return *plan;
}

}  // namespace

Result<Plan> plan_for(const ForwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return find_or_make(arguments, options, execution);
}

Result<Plan> plan_for(const BackwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return find_or_make(arguments, options, execution);
}

}  // namespace strobe::python
