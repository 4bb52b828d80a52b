// SPDX-License-Identifier: Apache-2.0
// What a function of the caller's throws: a parallel_for, an allocate_workspace. It is the caller's, and passes through
// the engines to the caller as it is, while an exception of the library's own becomes an error.
#pragma once

#include <exception>
#include <utility>

namespace strobe {

/// Around what a function of the caller's threw, until the API is left.
struct CallersException {
  std::exception_ptr exception;
};

/// Calls a function of the caller's.
template <class Function, class... Args>
decltype(auto) call_callers(const Function& function, Args&&... args) {
  try {
    return function(std::forward<Args>(args)...);
  } catch (...) {
    throw CallersException{std::current_exception()};
  }
}

}  // namespace strobe
