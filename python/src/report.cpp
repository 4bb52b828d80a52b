// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "strobe/gpu_report.h"

namespace nb = nanobind;

namespace strobe::python {

nb::dict gpu_report() {
  const GpuReport found = strobe::gpu_report();
  nb::dict report;
  report["driver"] = found.driver;
  report["devices"] = found.devices;
  report["compiled_ahead"] = found.pack;
  report["installed_kernels"] = found.installed_packs;
  report["compiler"] = found.compiler;
  report["kernel_cache"] = found.cache;
  report["tuned_choices"] = found.tuned;
  return report;
}

}  // namespace strobe::python
