// SPDX-License-Identifier: Apache-2.0
#include "passes.h"

#include <fmt/format.h>

#include <cctype>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "call_options.h"
#include "call_tensors.h"
#include "errors.h"
#include "imports.h"
#include "strobe/plan.h"
#include "workspace.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

constexpr const char* kOut = "out";
constexpr const char* kFloats = "float32, float16 or bfloat16";

void check_out_dtype(const CallOptions& options) {
  const DType q = options.arguments.q.dtype;
  if (options.out_dtype && size_of(q) > 1) {
    raise(PyExc_ValueError, "out_dtype is given, but q is {}: it belongs to 8-bit inputs", name_of(q));
  }
}

/// Why a tensor of a forward is none of a backward or JVP.
std::string why_forward_alone(std::string_view name, std::string_view pass) {
  if (name == "page_table") return fmt::format("no engine has the {} of a key-value cache", pass);
  if (name == "tree_mask") return fmt::format("no engine has the {} of tree masks", pass);
  if (name == "qv") return fmt::format("no engine has the {} of qv", pass);
  return fmt::format("8-bit inputs have no {}", pass);
}

template <class Arguments>
void add_options(const CallOptions& options, Arguments& arguments) {
  constexpr std::string_view kPass = std::is_same_v<Arguments, JvpArguments> ? "JVP" : "backward";
  const ForwardArguments& given = options.arguments;
  if (given.v_rotation.given) {
    raise(PyExc_NotImplementedError, "v_rotation is given: {}", why_forward_alone("v_rotation", kPass));
  }
  for_each_tensor(given, [kPass](const CallTensor& tensor, const ConstTensorView& view) {
    if (!view.given() || find_tensor<Arguments>(tensor.name) != nullptr) return;
    raise(PyExc_NotImplementedError, "{} is given: {}", tensor.name, why_forward_alone(tensor.name, kPass));
  });
  arguments.sequences = given.sequences;
  arguments.modifiers = given.modifiers;
  arguments.random = given.random;
  if constexpr (requires { arguments.qv; }) arguments.qv = given.qv;
}

/// A seed of our own would be the same in every call, and a drawn one unknown to the backward.
void check_seeded(const CallOptions& options) {
  const float dropout = options.attention.dropout;
  const bool draws = dropout > 0.0F && dropout < 1.0F;  // the call rejects what is outside
  if (!draws || options.seeded) return;
  raise(PyExc_ValueError,
        "dropout is given without a seed: give seed or random_state, and another one, or another offset, in each call");
}

Status call(const ForwardArguments& arguments, const CallOptions& options) {
  return forward(arguments, options.attention, options.execution);
}
Status call(const BackwardArguments& arguments, const CallOptions& options) {
  return backward(arguments, options.attention, options.execution);
}

Status call(const JvpArguments& arguments, const CallOptions& options) {
  return jvp(arguments, options.attention, options.execution);
}

template <class Arguments>
Status run(const Arguments& arguments, const CallOptions& options) {
  const nb::gil_scoped_release released;
  return call(arguments, options);
}

/// A forward's output is o in C++ and out in Python: so it is in a message, which has the name as a word of its own.
Status with_python_names(const Status& status) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::string message = " " + std::string(status.message()) + " ";
  for (std::size_t at = message.find('o'); at != std::string::npos; at = message.find('o', at + 1)) {
    if (!is_letter(message[at - 1]) && !is_letter(message[at + 1])) message.replace(at, 1, kOut);
  }
  return {status.code(), message.substr(1, message.size() - 2)};
}

/// Views of [batch, heads, seqlen, head_dim] as the library's [batch, seqlen, heads, head_dim].
template <class... Views>
void swap_seqlen_and_heads(Views&... views) {
  const auto swap = [](auto& view) {
    if (view.rank != kMaxRank) return;  // which the call rejects
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
  };
  (swap(views), ...);
}

/// A contiguous tensor beside `like`, without memory; messages call it by `name`.
TensorView planned(const char* name, const ConstTensorView& like, std::vector<std::int64_t> shape, DType dtype) {
  return view_of(TensorShape{.shape = std::move(shape), .dtype = dtype, .device = like.device}, {name, kFloats});
}

std::vector<std::int64_t> extents(const ConstTensorView& view) {
  return {view.shape.begin(), view.shape.begin() + view.rank};
}

/// Outputs of the shapes that the call would have; nothing where q is not of a call's rank, which the plan then says.
struct PlannedOutputs {
  PlannedOutputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                 std::optional<DType> out_dtype)
      : dq(planned("q", q, extents(q), q.dtype)),
        dk(planned("k", q, extents(k), q.dtype)),
        dv(planned("v", q, extents(v), q.dtype)) {
    const int columns = v.rank - (out_dtype.has_value() ? 2 : 1);  // V of 8-bit inputs is transposed
    if (q.rank < 3 || columns < 0) return;
    std::vector<std::int64_t> shape = extents(q);
    lse = q.rank == 3 ? planned("lse", q, {shape[1], shape[0]}, DType::float32)
                      : planned("lse", q, {shape[0], shape[2], shape[1]}, DType::float32);
    shape.back() = v.shape[static_cast<std::size_t>(columns)];
    o = planned("o", q, shape, out_dtype.value_or(q.dtype));
  }

  TensorView o, lse, dq, dk, dv;
};

}  // namespace

void raise_if_failed(const Status& status) {
  switch (status.code()) {
    case StatusCode::ok: return;
    case StatusCode::invalid_argument: raise(PyExc_ValueError, "{}", status.message());
    case StatusCode::unsupported: raise(PyExc_NotImplementedError, "{}", status.message());
    case StatusCode::out_of_memory: raise(PyExc_MemoryError, "{}", status.message());
    case StatusCode::device_error: raise(PyExc_RuntimeError, "{}", status.message());
  }
}

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle max_logits,
             bool heads_first, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  CallOptions options;
  ForwardArguments& arguments = options.arguments;
  import_tensors(imports, arguments, {{"q", q}, {"k", k}, {"v", v}});
  read_options(keywords, imports, options);
  check_seeded(options);
  import_tensors(imports, arguments, {{"o", out, kOut}, {"lse", lse}, {"max_logits", max_logits}});
  if (heads_first) swap_seqlen_and_heads(arguments.q, arguments.k, arguments.v, arguments.o);
  check_out_dtype(options);
  const Status status = run(arguments, options);
  if (!status.ok()) raise_if_failed(with_python_names(status));
}

void backward(nb::handle d_o, nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse, nb::handle d_lse,
              nb::handle dq, nb::handle dk, nb::handle dv, nb::handle d_bias, nb::handle d_sink,
              nb::handle allocate_workspace, nb::handle d_captures, nb::handle dqv, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  BackwardArguments arguments;
  import_tensors(imports, arguments,
                 {{"q", q}, {"k", k}, {"v", v}, {"o", o}, {"lse", lse}, {"d_o", d_o}, {"d_lse", d_lse}});
  CallOptions options = read_options(keywords, imports);
  check_seeded(options);
  import_tensors(imports, arguments,
                 {{"dq", dq}, {"dk", dk}, {"dv", dv}, {"d_bias", d_bias}, {"d_sink", d_sink}, {"dqv", dqv}});
  add_options(options, arguments);
  const std::vector<TensorView> gradients = import_gradients(imports, options.expression, d_captures);
  arguments.d_captures = gradients;
  WorkspaceFunction workspace(allocate_workspace, imports);
  const AllocateWorkspace allocate = std::ref(workspace);
  if (!allocate_workspace.is_none()) options.execution.allocate_workspace = &allocate;
  raise_if_failed(run(arguments, options));
}

void jvp(nb::handle q, nb::handle k, nb::handle v, nb::handle q_tangent, nb::handle k_tangent, nb::handle v_tangent,
         nb::handle o, nb::handle lse, nb::handle o_tangent, nb::handle lse_tangent, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  JvpArguments arguments;
  import_tensors(
      imports, arguments,
      {{"q", q}, {"k", k}, {"v", v}, {"q_tangent", q_tangent}, {"k_tangent", k_tangent}, {"v_tangent", v_tangent}});
  const CallOptions options = read_options(keywords, imports);
  check_seeded(options);
  import_tensors(imports, arguments, {{"o", o}, {"lse", lse}, {"o_tangent", o_tangent}, {"lse_tangent", lse_tangent}});
  add_options(options, arguments);
  raise_if_failed(run(arguments, options));
}

std::string explain(nb::handle q, nb::handle k, nb::handle v, bool backward, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  CallOptions options;
  ForwardArguments& forward = options.arguments;
  import_tensors(imports, forward, {{"q", q}, {"k", k}, {"v", v}});
  if (!forward.q.given() || !forward.k.given() || !forward.v.given()) {
    raise(PyExc_TypeError, "q, k and v must be given");
  }
  read_options(keywords, imports, options);
  const PlannedOutputs out(forward.q, forward.k, forward.v, options.out_dtype);
  const TensorView lse = options.attention.normalize == Normalization::softmax ? out.lse : TensorView();
  const auto plan = [&]() -> Result<Plan> {
    if (backward) {
      BackwardArguments arguments{.q = forward.q,
                                  .k = forward.k,
                                  .v = forward.v,
                                  .o = out.o,
                                  .lse = lse,
                                  .d_o = out.o,
                                  .dq = out.dq,
                                  .dk = out.dk,
                                  .dv = out.dv};
      if (forward.qv.given()) arguments.dqv = out.o;
      add_options(options, arguments);
      return make_plan(arguments, options.attention, options.execution);
    }
    forward.o = out.o;
    forward.lse = lse;
    check_out_dtype(options);
    return make_plan(forward, options.attention, options.execution);
  }();
  raise_if_failed(plan.status());
  return plan->explain();
}

}  // namespace strobe::python
