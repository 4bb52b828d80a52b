// SPDX-License-Identifier: Apache-2.0
#include "operands.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <cstddef>
#include <vector>

#include "io/quantized.h"

namespace sentence_search {
namespace {

/// A packed tensor [tokens, heads, head_dim], rounded.
std::vector<strobe::bfloat16> rounded(const strobe::ConstTensorView& view) {
  std::vector<strobe::bfloat16> values;
  for (std::int64_t token = 0; token < view.shape[0]; ++token) {
    const float* row = static_cast<const float*>(view.data) + token * view.strides[0];
    for (std::int64_t i = 0; i < view.shape[1] * view.shape[2]; ++i) values.push_back(strobe::to_bfloat16(row[i]));
  }
  return values;
}

strobe::Status attend_in_bfloat16(const strobe::ForwardArguments& arguments, int threads) {
  const std::vector<strobe::bfloat16> q = rounded(arguments.q);
  const std::vector<strobe::bfloat16> k = rounded(arguments.k);
  const std::vector<strobe::bfloat16> v = rounded(arguments.v);
  std::vector<strobe::bfloat16> o(q.size());
  const auto view = [&](auto& values) {
    const auto& shape = arguments.q.shape;
    return strobe::tensor(values.data(), {shape[0], shape[1], shape[2]});
  };
  strobe::ForwardArguments halves = arguments;
  halves.q = view(q);
  halves.k = view(k);
  halves.v = view(v);
  halves.o = view(o);
  strobe::Status status = strobe::forward(halves, {}, {.threads = threads});
  for (std::size_t i = 0; i < o.size(); ++i) static_cast<float*>(arguments.o.data)[i] = strobe::to_float(o[i]);
  return status;
}

/// Rows [begin, end) of a packed float32 tensor, as a batch of one.
template <class View>
View sentence_of(const View& packed, std::int64_t begin, std::int64_t end) {
  View view = packed;
  view.data = static_cast<decltype(view.data)>(
      const_cast<float*>(static_cast<const float*>(packed.data) + begin * packed.strides[0]));
  view.rank = 4;
  view.shape = {1, end - begin, packed.shape[1], packed.shape[2]};
  view.strides = {(end - begin) * packed.strides[0], packed.strides[0], packed.strides[1], 1};
  return view;
}

strobe::Status attend_in_8_bits(const strobe::ForwardArguments& arguments, strobe::DType element, int threads) {
  const auto* const cu_seqlens = static_cast<const std::int32_t*>(arguments.sequences.cu_seqlens_q.data);
  const auto sentences = static_cast<std::size_t>(arguments.sequences.cu_seqlens_q.shape[0] - 1);
  std::vector<strobe::Status> statuses(sentences);
  oneapi::tbb::task_arena(threads).execute([&] {
    oneapi::tbb::parallel_for(std::size_t{0}, sentences, [&](std::size_t i) {
      const auto of = [&](const auto& packed) { return sentence_of(packed, cu_seqlens[i], cu_seqlens[i + 1]); };
      const strobe::Result<strobe::io::Quantized> operands = strobe::io::quantized(
          of(arguments.q), of(arguments.k), of(arguments.v), {.element = element}, {.threads = 1});
      if (!operands.ok()) {
        statuses[i] = operands.status();
        return;
      }
      strobe::ForwardArguments call = operands->arguments();
      call.o = of(arguments.o);
      statuses[i] = strobe::forward(call, {}, {.threads = 1});
    });
  });
  for (const strobe::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

strobe::Status attend(const strobe::ForwardArguments& arguments, Operands operands, int threads) {
  switch (operands) {
    case Operands::bfloat16: return attend_in_bfloat16(arguments, threads);
    case Operands::int8: return attend_in_8_bits(arguments, strobe::DType::int8, threads);
    case Operands::float8_e4m3: return attend_in_8_bits(arguments, strobe::DType::float8_e4m3, threads);
    case Operands::float32: break;
  }
  return strobe::forward(arguments, {}, {.threads = threads});
}

}  // namespace sentence_search
