// SPDX-License-Identifier: Apache-2.0
#include "engine/registry.h"

#include "cpu/engine.h"
#include "sm80/engine.h"
#include "sm90/engine.h"

namespace strobe::engine {

std::span<const Implementation* const> implementations() {
  static const Implementation* const engines[] = {&sm90::engine(), &sm80::engine(), &cpu::engine()};
  return engines;
}

}  // namespace strobe::engine
