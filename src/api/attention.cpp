#include "strobe/attention.h"

#include "strobe/plan.h"

namespace strobe {

Status forward(const ForwardArguments&, const AttentionOptions&, const Execution&) {
  return {StatusCode::unsupported, "the forward is not built yet"};
}

Status backward(const BackwardArguments&, const AttentionOptions&, const Execution&) {
  return {StatusCode::unsupported, "the backward is not built yet"};
}

}  // namespace strobe
