// SPDX-License-Identifier: Apache-2.0
#include "engine/registry.h"

#include "cpu/engine.h"
#include "gpu/engine.h"

namespace strobe::engine {

std::span<const Implementation* const> implementations() {
  static const Implementation* const engines[] = {&gpu::engine(), &cpu::engine()};
  return engines;
}

}  // namespace strobe::engine
