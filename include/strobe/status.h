// SPDX-License-Identifier: Apache-2.0
// The result of a call: a code for programs and a message for people.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "strobe/cxx20.h"

namespace strobe {

/// @stable
enum class StatusCode {
  ok,
  invalid_argument,  // arguments that contradict each other or the documentation
  unsupported,       // a valid call that no engine of this build supports
  out_of_memory,     // workspace or host memory could not be allocated
  device_error,      // the driver or device failed; the message ends with the driver's own
};

/// The outcome of a call. The message of a failed Status says what was given and what is accepted. When a call fails,
/// its outputs are untouched, except for a device_error during the run. @stable
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

/// A value, or the Status that tells why there is none. Dereference it only if ok(). @stable
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace strobe
