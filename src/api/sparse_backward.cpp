// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "api/call_memory.h"
#include "api/choose_engine.h"
#include "api/device_values.h"
#include "api/guarded.h"
#include "api/sparse.h"

namespace strobe {
namespace {

using api::invalid;
using api::NamedTensor;

/// A tensor that must be like another: of its shape, dtype and device.
Status check_like(const NamedTensor& tensor, const NamedTensor& like) {
  const ConstTensorView& to = like.view;
  const std::string layout = fmt::format("like {}", like.name);
  const std::string reason = fmt::format(", as {} is", like.name);
  Status status = api::first_failure([&] { return api::check_layout(tensor, to.rank, layout); },
                                     [&] { return api::check_dtype(tensor, to.dtype, reason); },
                                     [&] { return api::check_device(tensor, to.device); });
  if (!status.ok()) return status;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(to.rank); ++axis) {
    if (tensor.view.shape[axis] == to.shape[axis]) continue;
    return invalid("{} has shape {} and {} {}: they must be equal", tensor.name, api::shape_text(tensor.view),
                   like.name, api::shape_text(to));
  }
  return {};
}

Status check_gradient(const NamedTensor& gradient, const NamedTensor& like) {
  if (Status status = check_like(gradient, like); !status.ok()) return status;
  return api::check_distinct_elements(gradient);
}

Status check_source(const SparseBackwardArguments& a, std::size_t index) {
  const SparseSource& s = a.forward.sources[index];
  const SparseSourceGradient& g = a.gradients[index];
  const std::string source = fmt::format("sources[{}]", index);
  const std::string gradient = fmt::format("gradients[{}]", index);
  if (!s.k.given()) {
    if (!g.dk.given() && !g.dv.given()) return {};
    return invalid("{} is given without {}.k", gradient, source);
  }
  if (s.k_format.given() || s.v_format.given() || s.page_table.given() || s.in_pool) {
    return invalid("{} has {}: a backward takes k and v of floats, batched or packed", source,
                   s.page_table.given() ? "pages"
                   : s.in_pool          ? "a pool"
                                        : "a row format");
  }
  if (!s.v.given() && g.dv.given()) {
    return invalid("{}.dv is given, and {}.v is not: {}.dk has both gradients", gradient, source, gradient);
  }
  Status status = check_gradient({gradient + ".dk", g.dk}, {source + ".k", s.k});
  if (!status.ok() || !s.v.given()) return status;
  return check_gradient({gradient + ".dv", g.dv}, {source + ".v", s.v});
}

Status check_backward_shapes(const SparseBackwardArguments& a, const SparseOptions& options) {
  const SparseForwardArguments& f = a.forward;
  Status status = api::first_failure(
      [&] { return api::check_sparse_shapes(f, options); },
      [&] { return f.lse.given() ? Status() : invalid("lse is missing: give what the forward wrote"); },
      [&] { return check_like({"d_o", a.d_o}, {"o", f.o}); },
      [&] { return a.d_lse.given() ? check_like({"d_lse", a.d_lse}, {"lse", f.lse}) : Status(); },
      [&] { return check_gradient({"dq", a.dq}, {"q", f.q}); }, [&] { return check_source(a, 0); },
      [&] { return check_source(a, 1); });
  if (!status.ok() || !a.d_sink.given()) return status;
  if (!f.sink.given()) return invalid("d_sink is given without sink");
  return check_gradient({"d_sink", a.d_sink}, {"sink", f.sink});
}

/// Pointers, and the gradients apart from one another and from what is read.
Status check_backward_memory(const SparseBackwardArguments& a) {
  if (Status status = api::check_sparse_memory(a.forward); !status.ok()) return status;
  api::CallMemory memory;
  memory.add_output("dq", a.dq);
  memory.add_output("d_sink", a.d_sink);
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    memory.add_output(fmt::format("gradients[{}].dk", i), a.gradients[i].dk);
    memory.add_output(fmt::format("gradients[{}].dv", i), a.gradients[i].dv);
  }
  memory.add_input("d_o", a.d_o);
  memory.add_input("d_lse", a.d_lse);
  memory.add_input("q", a.forward.q);
  memory.add_input("o", a.forward.o);
  memory.add_input("lse", a.forward.lse);
  memory.add_input("sink", a.forward.sink);
  memory.add_input("cu_seqlens_q", a.forward.cu_seqlens_q);
  api::add_sources(memory, a.forward.sources);
  return memory.check();
}

Status run_sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                           const Execution& execution) {
  const Device& device = arguments.forward.q.device;
  const Result<const engine::Implementation*> chosen =
      api::engine_for(check_backward_shapes(arguments, options), device, execution);
  if (!chosen.ok()) return chosen.status();
  Status status = check_backward_memory(arguments);
  if (status.ok()) {
    status = device.type == DeviceType::cpu ? api::check_sparse_values(arguments.forward)
                                            : api::check_device_values(arguments.forward, execution);
  }
  return status.ok() ? (*chosen)->sparse_backward(arguments, options, execution) : status;
}

}  // namespace

Status sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                       const Execution& execution) {
  return api::guarded([&] { return run_sparse_backward(arguments, options, execution); });
}

}  // namespace strobe
