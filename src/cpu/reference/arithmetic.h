// The roundings that each engine guarantees.
#pragma once

#include "cpu/reference/reference.h"
#include "strobe/attention.h"

namespace strobe::reference {

/// What `engine` does to a call in `dtype`. `engine` is that of a plan, never automatic.
ArithmeticModel arithmetic_of(Engine engine, DType dtype);

}  // namespace strobe::reference
