// SPDX-License-Identifier: Apache-2.0
#include "api/choose_engine.h"

#include <fmt/format.h>

#include <string>

#include "api/tensor_checks.h"
#include "engine/registry.h"

namespace strobe::api {
namespace {

/// "automatic, cpu or gpu": what Execution::engine accepts.
std::string accepted(std::span<const engine::Implementation* const> engines) {
  std::string names = "automatic";
  for (std::size_t i = engines.size(); i-- > 0;) {
    names += fmt::format("{}{}", i > 0 ? ", " : " or ", name_of(engines[i]->id()));
  }
  return names;
}

std::string_view devices_of(DeviceType type) { return type == DeviceType::cpu ? "the cpu" : "a CUDA device"; }

Status wrong_device(const Device& device, const engine::Implementation& wanted) {
  return unsupported("q is on {}: the {} engine takes tensors on {}", device_text(device), name_of(wanted.id()),
                     devices_of(wanted.device_type()));
}

}  // namespace

Result<const engine::Implementation*> choose_engine(std::span<const engine::Implementation* const> engines,
                                                    const Device& device, Engine named) {
  const Engine wanted = engine::current(named);
  Status reason;
  bool known = wanted == Engine::automatic;
  for (const engine::Implementation* const engine : engines) {
    if (wanted != Engine::automatic && engine->id() != wanted) continue;
    known = true;
    if (engine->device_type() != device.type) {
      if (wanted != Engine::automatic) return wrong_device(device, *engine);
      continue;
    }
    Status served = engine->serves(device);
    if (served.ok()) return engine;
    reason = std::move(served);  // that of the last one, which serves the most devices
  }
  if (!known) {
    return unsupported("the {} engine is not in this build: engine must be {}", name_of(wanted), accepted(engines));
  }
  if (!reason.ok()) return reason;
  return unsupported("no engine of this build takes tensors on {}", devices_of(device.type));
}

Result<const engine::Implementation*> engine_for(const Status& checked, const Device& device,
                                                 const Execution& execution) {
  if (!checked.ok()) return checked;
  if (Status status = check_threads(execution.threads); !status.ok()) return status;
  return choose_engine(engine::implementations(), device, execution.engine);
}

}  // namespace strobe::api
