// SPDX-License-Identifier: Apache-2.0
#include "passes.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "call_options.h"
#include "errors.h"
#include "imports.h"
#include "strobe/plan.h"
#include "workspace.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

constexpr const char* kFloats = "float32, float16 or bfloat16";
constexpr const char* kFloat32 = "float32";
constexpr const char* kLikeQ = "q's dtype";

/// What the arguments of both passes have beside q, k and v.
template <class Arguments>
void add_shared_options(const CallOptions& options, Arguments& arguments) {
  arguments.sequences = options.sequences;
  arguments.modifiers = options.modifiers;
  arguments.random = options.random;
}

void add_options(const CallOptions& options, ForwardArguments& arguments) {
  add_shared_options(options, arguments);
  arguments.q_descale = options.q_descale;
  arguments.k_descale = options.k_descale;
  arguments.v_descale = options.v_descale;
  arguments.q_shift = options.q_shift;
  arguments.v_rotation = options.v_rotation;
  if (options.out_dtype && size_of(arguments.q.dtype) > 1) {
    raise(PyExc_ValueError, "out_dtype is given, but q is {}: it belongs to 8-bit inputs", name_of(arguments.q.dtype));
  }
  arguments.page_table = options.page_table;
  arguments.tree_mask = options.tree_mask;
}

void add_options(const CallOptions& options, BackwardArguments& arguments) {
  add_shared_options(options, arguments);
  for (const auto& [name, scales] :
       {std::pair{"q_descale", &options.q_descale}, std::pair{"k_descale", &options.k_descale},
        std::pair{"v_descale", &options.v_descale}, std::pair{"q_shift", &options.q_shift}}) {
    if (scales->given()) raise(PyExc_NotImplementedError, "{} is given: 8-bit inputs have no backward", name);
  }
  if (options.v_rotation.given) {
    raise(PyExc_NotImplementedError, "v_rotation is given: 8-bit inputs have no backward");
  }
  if (options.page_table.given()) {
    raise(PyExc_NotImplementedError, "page_table is given: no engine has the backward of a key-value cache");
  }
  if (options.tree_mask.given()) {
    raise(PyExc_NotImplementedError, "tree_mask is given: no engine has the backward of tree masks");
  }
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

template <class Arguments>
void run(const Arguments& arguments, const CallOptions& options) {
  Status status;
  {
    const nb::gil_scoped_release released;
    status = call(arguments, options);
  }
  raise_if_failed(status);
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

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse, nb::handle max_logits,
             bool heads_first, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  ForwardArguments arguments;
  arguments.q = imports.view(q, {"q", kFloats});
  arguments.k = imports.view(k, {"k", kLikeQ});
  arguments.v = imports.view(v, {"v", kLikeQ});
  const CallOptions options = read_options(keywords, imports);
  check_seeded(options);
  arguments.o = imports.view(o, {"o", kLikeQ, true});
  arguments.lse = imports.view(lse, {"lse", kFloat32, true});
  arguments.max_logits = imports.view(max_logits, {"max_logits", kFloat32, true});
  if (heads_first) swap_seqlen_and_heads(arguments.q, arguments.k, arguments.v, arguments.o);
  add_options(options, arguments);
  run(arguments, options);
}

void backward(nb::handle d_o, nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse, nb::handle d_lse,
              nb::handle dq, nb::handle dk, nb::handle dv, nb::handle d_bias, nb::handle d_sink,
              nb::handle allocate_workspace, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  BackwardArguments arguments;
  arguments.q = imports.view(q, {"q", kFloats});
  arguments.k = imports.view(k, {"k", kLikeQ});
  arguments.v = imports.view(v, {"v", kLikeQ});
  arguments.o = imports.view(o, {"o", kLikeQ});
  arguments.lse = imports.view(lse, {"lse", kFloat32});
  arguments.d_o = imports.view(d_o, {"d_o", kLikeQ});
  arguments.d_lse = imports.view(d_lse, {"d_lse", kFloat32});
  CallOptions options = read_options(keywords, imports);
  check_seeded(options);
  arguments.dq = imports.view(dq, {"dq", kLikeQ, true});
  arguments.dk = imports.view(dk, {"dk", kLikeQ, true});
  arguments.dv = imports.view(dv, {"dv", kLikeQ, true});
  arguments.d_bias = imports.view(d_bias, {"d_bias", kFloat32, true});
  arguments.d_sink = imports.view(d_sink, {"d_sink", kFloat32, true});
  add_options(options, arguments);
  WorkspaceFunction workspace(allocate_workspace, imports);
  const AllocateWorkspace allocate = std::ref(workspace);
  if (!allocate_workspace.is_none()) options.execution.allocate_workspace = &allocate;
  run(arguments, options);
}

std::string explain(nb::handle q, nb::handle k, nb::handle v, bool backward, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  const ConstTensorView query = imports.view(q, {"q", kFloats});
  const ConstTensorView key = imports.view(k, {"k", kLikeQ});
  const ConstTensorView value = imports.view(v, {"v", kLikeQ});
  if (!query.given() || !key.given() || !value.given()) raise(PyExc_TypeError, "q, k and v must be given");
  const CallOptions options = read_options(keywords, imports);
  const PlannedOutputs out(query, key, value, options.out_dtype);
  const auto plan = [&]() -> Result<Plan> {
    if (backward) {
      BackwardArguments arguments{.q = query,
                                  .k = key,
                                  .v = value,
                                  .o = out.o,
                                  .lse = out.lse,
                                  .d_o = out.o,
                                  .dq = out.dq,
                                  .dk = out.dk,
                                  .dv = out.dv};
      add_options(options, arguments);
      return make_plan(arguments, options.attention, options.execution);
    }
    ForwardArguments arguments{.q = query, .k = key, .v = value, .o = out.o, .lse = out.lse};
    add_options(options, arguments);
    return make_plan(arguments, options.attention, options.execution);
  }();
  raise_if_failed(plan.status());
  return plan->explain();
}

}  // namespace strobe::python
