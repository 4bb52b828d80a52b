// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed on every way out.
#pragma once

#include <unistd.h>

#include <utility>

namespace strobe::io {

class Descriptor {
 public:
  /// Takes over what open() returned, -1 included.
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }

  bool is_open() const { return value_ >= 0; }
  int get() const { return value_; }

  /// Closes it now. 0, or -1 and errno as close() has them: some file systems report here that a write has failed.
  int close() { return ::close(std::exchange(value_, -1)); }

 private:
  int value_;
};

}  // namespace strobe::io
