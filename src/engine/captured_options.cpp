// SPDX-License-Identifier: Apache-2.0
#include "engine/captured_options.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "call/text_options.h"
#include "engine/wrapped_call.h"

namespace strobe::engine {
namespace {

class WithCapturedOptions final : public WrappedCall {
 public:
  WithCapturedOptions(const AttentionProblem& problem, const expression::ScoreTerms& terms,
                      std::shared_ptr<const PlannedCall> call)
      : WrappedCall(std::move(call)), problem_(problem), terms_(terms) {}

  using PlannedCall::run;
  Status run(const ForwardArguments& given, const Execution& execution) const override {
    ForwardArguments arguments = given;
    set_options(arguments.modifiers);
    return wrapped().run(arguments, execution);
  }
  Status run(const BackwardArguments& given, const Execution& execution) const override {
    BackwardArguments arguments = given;
    set_options(arguments.modifiers);
    if (terms_.bias.given() && !given.d_captures.empty()) {
      const TensorView& gradient = given.d_captures[static_cast<std::size_t>(terms_.bias.capture)];
      if (gradient.given()) arguments.d_bias = option_view(terms_.bias, problem_, gradient);
    }
    arguments.d_captures = {};
    return wrapped().run(arguments, execution);
  }

 private:
  void set_options(ScoreModifiers& modifiers) const {
    const auto view_of = [&](const expression::CapturedTensor& tensor) {
      return option_view(tensor, problem_, modifiers.captures[static_cast<std::size_t>(tensor.capture)]);
    };
    if (terms_.bias.given()) modifiers.bias = view_of(terms_.bias);
    if (terms_.slopes.given()) modifiers.alibi_slopes = view_of(terms_.slopes);
  }

  AttentionProblem problem_;
  expression::ScoreTerms terms_;
};

}  // namespace

PlannedCallResult with_captured_options(const AttentionProblem& problem, const PlannedCallResult& call) {
  const expression::ScoreTerms terms = captured_options(problem);
  if (!call.ok() || !terms.has_captures()) return call;
  return make_planned<WithCapturedOptions>(problem, terms, *call);
}

}  // namespace strobe::engine
