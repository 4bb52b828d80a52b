// SPDX-License-Identifier: Apache-2.0
// Small kernels as text, for the tests that compile.
#pragma once

#include <string>

#include "runtime/archive.h"
#include "runtime/embedded.h"
#include "runtime/variant.h"

namespace strobe::test {

/// Our own text, as src/kernels would hold it.
inline constexpr const char* kKernelText = R"(
#pragma once
enum class Kind : unsigned char { add, multiply };
struct Config {
  Kind kind = Kind::add;
  int by = 1;
};
namespace test {
template <Config C>
__global__ void __launch_bounds__(128) change(float* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  if constexpr (C.kind == Kind::add) values[i] += C.by;
  if constexpr (C.kind == Kind::multiply) values[i] *= C.by;
}
}
)";

/// The kernel that adds `by` to every element.
inline runtime::Variant add_variant(int by) {
  return {.name = "add " + std::to_string(by),
          .include = "test/change.h",
          .expression = "test::change<Config{.kind = Kind::add, .by = " + std::to_string(by) + "}>",
          .architecture = "sm_90a"};
}

/// An archive with that text and, where the library has them, the CUDA headers it embeds.
inline std::string test_sources(const std::string& text = kKernelText) {
  std::vector<std::pair<std::string, std::string>> entries = {{"test/change.h", text}};
  if (const auto embedded = runtime::Archive::parse(runtime::embedded_sources()); embedded.ok()) {
    for (const runtime::Archive::Entry& entry : embedded->entries()) entries.emplace_back(entry.name, entry.content);
  }
  return runtime::make_archive(std::move(entries));
}

}  // namespace strobe::test
