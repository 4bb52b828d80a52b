// SPDX-License-Identifier: Apache-2.0
// A small engine that exists in these tests alone: to add one is to write it and to list it.
#pragma once

#include "engine/engine.h"

namespace strobe::test {

/// Serves float32 on the cpu where scale is 0: attention is then the mean of V. It has no backward.
const engine::Implementation& mean_engine();

/// How many calls it has planned.
int mean_engine_plans();

}  // namespace strobe::test
