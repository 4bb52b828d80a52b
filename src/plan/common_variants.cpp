#include "runtime/pack/common_variants.h"

namespace strobe::runtime {

std::vector<CommonVariant> common_variants() { return {}; }

}  // namespace strobe::runtime
