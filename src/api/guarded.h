// SPDX-License-Identifier: Apache-2.0
// The border between the library and its callers, which no exception of the library's crosses.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>

#include "api/tensor_checks.h"
#include "call/callers_exception.h"
#include "call/checked.h"

namespace strobe::api {

/// What `function` returns, a Status or a Result; an exception of ours as an error. What a function of the caller's
/// threw is thrown again.
template <class Function>
auto guarded(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const CallersException& callers) {
    std::rethrow_exception(callers.exception);
  } catch (const SizeOverflow&) {
    return invalid("a product of this call's extents does not fit in 64 bits");
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, kMemoryRanOut);
  } catch (const std::length_error&) {  // of a container, for more than any memory
    return Status(StatusCode::out_of_memory, kMemoryRanOut);
  } catch (const std::exception& error) {  // threads and locks that the system refuses
    return Status(StatusCode::out_of_memory, fmt::format("the system refused a resource: {}", error.what()));
  }
}

}  // namespace strobe::api
