// A case drawn from a seed: every option in any combination, shapes small but nasty.
#pragma once

#include <cstdint>

#include "attention_case.h"

namespace strobe::test {

AttentionCase random_case(std::uint64_t seed);

}  // namespace strobe::test
