// What must hold of a call's memory just before it runs: pointers, overlaps, and the lengths that sequences are cut by.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "api/problem.h"
#include "api/tensor_checks.h"

namespace strobe::api {
namespace {

/// Pointers of all tensors, and outputs apart from one another and from inputs.
Status check_tensors(std::span<const NamedTensor> inputs, std::span<const NamedTensor> outputs) {
  for (const auto& tensors : {inputs, outputs}) {
    for (const NamedTensor& tensor : tensors) {
      if (!tensor.view.given()) continue;
      if (Status status = check_data(tensor); !status.ok()) return status;
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].view.given()) continue;
    for (const NamedTensor& input : inputs) {
      if (Status status = check_apart(outputs[i], input); !status.ok()) return status;
    }
    for (const NamedTensor& other : outputs.subspan(i + 1)) {
      if (Status status = check_apart(outputs[i], other); !status.ok()) return status;
    }
  }
  return {};
}

/// One side's lengths: cumulative lengths from 0, never decreasing, within the tensor; used lengths within the
/// sequence.
struct SideLengths {
  std::string_view cu_name, used_name, total_name, max_name;
  const ConstTensorView& cu_seqlens;
  const ConstTensorView& seqused;
  std::int64_t seqlen;  // batched: of every sequence; packed: the bound
  std::int64_t total;

  static std::int64_t at(const ConstTensorView& view, std::int64_t index) {
    return static_cast<const std::int32_t*>(view.data)[index * view.strides[0]];
  }

  Status check(std::int64_t batch) const {
    if (cu_seqlens.given() && at(cu_seqlens, 0) != 0)
      return invalid("{}[0] is {}: it must be 0", cu_name, at(cu_seqlens, 0));
    for (std::int64_t b = 0; b < batch; ++b) {
      if (Status status = check_sequence(b); !status.ok()) return status;
    }
    if (!cu_seqlens.given() || at(cu_seqlens, batch) <= total) return {};
    return invalid("{}[{}] is {}: it must be at most {}, which is {}", cu_name, batch, at(cu_seqlens, batch),
                   total_name, total);
  }

  Status check_sequence(std::int64_t b) const {
    std::int64_t length = seqlen;
    if (cu_seqlens.given()) {
      length = at(cu_seqlens, b + 1) - at(cu_seqlens, b);
      if (length < 0) {
        return invalid("{}[{}] is {} after {}: cumulative lengths must not decrease", cu_name, b + 1,
                       at(cu_seqlens, b + 1), at(cu_seqlens, b));
      }
      if (length > seqlen && seqlen < total) {
        return invalid("sequence {} has length {} in {}: {} is {}", b, length, cu_name, max_name, seqlen);
      }
    }
    if (!seqused.given() || (at(seqused, b) >= 0 && at(seqused, b) <= length)) return {};
    return invalid("{}[{}] is {}: it must be from 0 to the sequence's length, which is {}", used_name, b,
                   at(seqused, b), length);
  }
};

Status check_lengths(const AttentionProblem& problem, const Sequences& s) {
  if (problem.device.type != DeviceType::cpu) return {};  // lengths on a device are not read back
  const SideLengths q{"cu_seqlens_q", "seqused_q", "total_q",        "max_seqlen_q",
                      s.cu_seqlens_q, s.seqused_q, problem.seqlen_q, problem.total_q};
  const SideLengths k{"cu_seqlens_k", "seqused_k", "total_k",        "max_seqlen_k",
                      s.cu_seqlens_k, s.seqused_k, problem.seqlen_k, problem.total_k};
  if (Status status = q.check(problem.batch); !status.ok()) return status;
  return k.check(problem.batch);
}

/// Every input of a call: its own, then those that both passes have.
template <std::size_t count>
std::array<NamedTensor, count + 8> all_inputs(const NamedTensor (&own)[count], const Sequences& s,
                                              const ScoreModifiers& m) {
  std::array<NamedTensor, count + 8> inputs{};
  const NamedTensor shared[] = {{"cu_seqlens_q", s.cu_seqlens_q},
                                {"cu_seqlens_k", s.cu_seqlens_k},
                                {"seqused_q", s.seqused_q},
                                {"seqused_k", s.seqused_k},
                                {"alibi_slopes", m.alibi_slopes},
                                {"bias", m.bias},
                                {"sink", m.sink},
                                {"block_mask", m.block_mask}};
  std::ranges::copy(own, inputs.begin());
  std::ranges::copy(shared, inputs.begin() + count);
  return inputs;
}

}  // namespace

Status check_memory(const AttentionProblem& problem, const ForwardArguments& a) {
  const NamedTensor own[] = {{"q", a.q}, {"k", a.k}, {"v", a.v}};
  const NamedTensor outputs[] = {{"o", a.o}, {"lse", a.lse}, {"max_logits", a.max_logits}};
  Status status = check_tensors(all_inputs(own, a.sequences, a.modifiers), outputs);
  return status.ok() ? check_lengths(problem, a.sequences) : status;
}

Status check_memory(const AttentionProblem& problem, const BackwardArguments& a) {
  const NamedTensor own[] = {{"q", a.q},     {"k", a.k},     {"v", a.v},        {"o", a.o},
                             {"lse", a.lse}, {"d_o", a.d_o}, {"d_lse", a.d_lse}};
  const NamedTensor outputs[] = {{"dq", a.dq}, {"dk", a.dk}, {"dv", a.dv}, {"d_bias", a.d_bias}, {"d_sink", a.d_sink}};
  Status status = check_tensors(all_inputs(own, a.sequences, a.modifiers), outputs);
  return status.ok() ? check_lengths(problem, a.sequences) : status;
}

}  // namespace strobe::api
