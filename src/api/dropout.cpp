// SPDX-License-Identifier: Apache-2.0
#include "strobe/dropout.h"

#include <cstdint>

#include "api/guarded.h"
#include "api/tensor_checks.h"
#include "call/random_state.h"
#include "kernels/math/philox.h"

namespace strobe {
namespace {

void write_row(const DropoutKey& dropout, unsigned head, unsigned query, std::int64_t keys, std::uint8_t* row) {
  for (std::int64_t key = 0; key < keys; ++key) {
    const auto at = static_cast<unsigned>(key);
    const PhiloxBlock block = philox(dropout_counter(dropout, head, query, at), dropout.key);
    row[key] = dropout_slice(block, query, at) >= dropout.threshold ? 1 : 0;
  }
}

Status write_mask(float dropout, const RandomState& random, const TensorView& mask) {
  const api::NamedTensor named{"mask", mask};
  Status status = api::first_failure(
      [&] { return api::check_dropout(dropout); }, [&] { return api::check_random_state(dropout, random); },
      [&] { return api::check_layout(named, 4, "[batch, heads_q, seqlen_q, seqlen_k]"); },
      [&] { return api::check_dtype(named, DType::uint8, ""); }, [&] { return api::check_on_host(named); },
      [&] { return api::check_random_place(random, mask.shape[0], mask.shape[1]); },
      [&] { return api::check_data(named); }, [&] { return api::check_distinct_elements(named); });
  if (!status.ok() || api::empty(mask)) return status;
  const RandomState state = numbers_of(random, dropout);
  const DropoutKey key = dropout_key(dropout, state.seed, state.offset);
  for (std::int64_t b = 0; b < mask.shape[0]; ++b) {
    for (std::int64_t h = 0; h < mask.shape[1]; ++h) {
      for (std::int64_t i = 0; i < mask.shape[2]; ++i) {
        auto* row =
            static_cast<std::uint8_t*>(mask.data) + b * mask.strides[0] + h * mask.strides[1] + i * mask.strides[2];
        write_row(key, dropout_head(random, mask.shape[1], b, h), static_cast<unsigned>(i), mask.shape[3], row);
      }
    }
  }
  return {};
}

}  // namespace

Status dropout_mask(float dropout, const RandomState& random, const TensorView& mask) {
  return api::guarded([&] { return write_mask(dropout, random, mask); });
}

}  // namespace strobe
