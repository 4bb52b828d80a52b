// SPDX-License-Identifier: Apache-2.0
#include "engine/registry.h"

#include "ampere/engine.h"
#include "cpu/engine.h"
#include "hopper/engine.h"

namespace strobe::engine {

std::span<const Implementation* const> implementations() {
  static const Implementation* const engines[] = {&hopper::engine(), &ampere::engine(), &cpu::engine()};
  return engines;
}

}  // namespace strobe::engine
