// SPDX-License-Identifier: Apache-2.0
// How functions of the C ABI end: a code, and a message that strobe_last_error() gives.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "api/tensor_checks.h"
#include "strobe/strobe.h"

namespace strobe::api {

/// The calling thread's.
std::string& last_error();

/// Runs `function`, keeps its message for strobe_last_error and turns every exception into a code: what functions of
/// the caller's throw, too.
template <class Function>
strobe_code with_code(const Function& function) noexcept {
  try {
    last_error().clear();
    const Status status = function();
    if (status.ok()) return STROBE_OK;
    last_error() = status.message();
    return static_cast<strobe_code>(status.code());
  } catch (const std::bad_alloc&) {
    last_error().assign(kMemoryRanOut);
    return STROBE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_error().assign(error.what());
    return STROBE_INTERNAL_ERROR;
  } catch (...) {
    return STROBE_INTERNAL_ERROR;
  }
}

}  // namespace strobe::api
