// SPDX-License-Identifier: Apache-2.0
#include "score_function.h"

#include <cstddef>

#include "call/limits.h"
#include "expect.h"

namespace strobe::fuzz {
namespace {

/// Never freed: functions outlive all calls.
const strobe_score_function* parse(const char* score, const char* mask, const strobe_capture_type* captures,
                                   std::int32_t count) {
  strobe_score_function* function = nullptr;
  const strobe_code code = strobe_score_function_parse(score, mask, captures, count, &function);
  expect(code == STROBE_OK, "the function's texts are correct");
  return function;
}

}  // namespace

const strobe_score_function* parsed_function(const strobe_score_function* given) {
  static const strobe_capture_type slope{"slope", STROBE_FLOAT32, 1};
  static const strobe_score_function* const functions[] = {
      parse("score + slope[head] * (k - q)", "k <= q + 1", &slope, 1),
      parse("2 * tanh(score / 2)", nullptr, nullptr, 0)};
  return given == nullptr ? nullptr : functions[reinterpret_cast<std::uintptr_t>(given) % std::size(functions)];
}

void CaptureLists::place(const strobe_tensor*& pointer, List& list, const strobe_tensor& element, std::int32_t count) {
  if (pointer == nullptr) return;
  const bool taken = count >= 0 && count <= kMaxCaptures;
  list.assign(taken ? static_cast<std::size_t>(count) : 0, element);
  list.shrink_to_fit();
  static const strobe_tensor none{};
  pointer = list.empty() ? &none : list.data();
}

}  // namespace strobe::fuzz
