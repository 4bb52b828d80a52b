// SPDX-License-Identifier: Apache-2.0
// One compiled kernel as bytes: what the embedded pack and the disk cache hold.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/nvrtc.h"

namespace strobe::runtime {

/// Views into the archive bytes that it was read from: those of the library, or those that `storage` owns.
struct KernelImage {
  std::string_view cubin;
  std::string_view lowered_name;
  std::string_view log;         // the compiler's, with ptxas's lines on registers and spills
  std::string_view compile_ms;  // how long it took when it was compiled, in decimal
  std::shared_ptr<const std::string> storage;

  /// The bytes of an image, marked with the key they are stored under.
  static std::string serialize(const std::string& key, const CompileOutput& output, double compile_ms);

  /// Reads an image back from checked archive bytes that outlive it. invalid_argument when it is not the kernel `key`:
  /// a file under another kernel's name is never taken for that kernel.
  static Result<KernelImage> parse(const std::string& key, std::string_view bytes);

  /// The image that `bytes` hold, which it owns.
  static Result<KernelImage> parse(const std::string& key, std::string bytes);
};

}  // namespace strobe::runtime
