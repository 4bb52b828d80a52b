// SPDX-License-Identifier: Apache-2.0
// A shared object opened at run time, and its functions.
#pragma once

#include <string>

namespace strobe::runtime {

/// The functions of one dlopen handle. Handles are never closed: the driver and NVRTC keep threads and exit handlers
/// of their own.
class SharedObject {
 public:
  explicit SharedObject(void* handle) : handle_(handle) {}

  /// A symbol that becomes whatever function pointer it is assigned to.
  class Symbol {
   public:
    explicit Symbol(void* address) : address_(address) {}
    template <class Function>
    operator Function*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Function*>(address_);
    }

   private:
    void* address_;
  };

  /// The function called `name`, or null; the first name that is not there is remembered.
  Symbol find(const char* name);

  /// The first name that find() did not meet; empty when all were there.
  const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string missing_;
};

}  // namespace strobe::runtime
