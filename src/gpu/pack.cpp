// SPDX-License-Identifier: Apache-2.0
// What the build compiles ahead: every family's list.
#include <algorithm>
#include <iterator>

#include "gpu/variant/architecture.h"
#include "runtime/pack/common_variants.h"
#include "sm80/pack.h"
#include "sm90/pack.h"

namespace strobe::runtime {

std::vector<CommonVariant> common_variants() {
  std::vector<CommonVariant> all;
  for (const auto list : {sm90::pack, sm80::pack}) std::ranges::move(list(), std::back_inserter(all));
  return all;
}

std::string_view newest_architecture() { return gpu::kSm90a; }

}  // namespace strobe::runtime
