// SPDX-License-Identifier: Apache-2.0
// The passes and their plans on Python tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace strobe::python {

/// Reads q, k and v and writes out and, where they are not None, lse and max_logits. `heads_first`: q, k, v and out are
/// [batch, heads, seqlen, head_dim].
void forward(nanobind::handle q, nanobind::handle k, nanobind::handle v, nanobind::handle out, nanobind::handle lse,
             nanobind::handle max_logits, bool heads_first, const nanobind::kwargs& keywords);

/// Reads the forward's inputs and outputs and d_o (and d_lse where it is not None); writes dq, dk, dv and, where they
/// are not None, d_bias, d_sink, d_captures, a dict of names and tensors, and dqv. `allocate_workspace`: a function of
/// a number of bytes that gives a tensor on q's device with as many, or None where the library is to allocate.
void backward(nanobind::handle d_o, nanobind::handle q, nanobind::handle k, nanobind::handle v, nanobind::handle o,
              nanobind::handle lse, nanobind::handle d_lse, nanobind::handle dq, nanobind::handle dk,
              nanobind::handle dv, nanobind::handle d_bias, nanobind::handle d_sink,
              nanobind::handle allocate_workspace, nanobind::handle d_captures, nanobind::handle dqv,
              const nanobind::kwargs& keywords);

/// Reads q, k and v and their tangents, None where they are zero; writes o_tangent and, where they are not None, o, lse
/// and lse_tangent.
void jvp(nanobind::handle q, nanobind::handle k, nanobind::handle v, nanobind::handle q_tangent,
         nanobind::handle k_tangent, nanobind::handle v_tangent, nanobind::handle o, nanobind::handle lse,
         nanobind::handle o_tangent, nanobind::handle lse_tangent, const nanobind::kwargs& keywords);

/// What a plan for these tensors says of itself; they may be TensorShapes.
std::string explain(nanobind::handle q, nanobind::handle k, nanobind::handle v, bool backward,
                    const nanobind::kwargs& keywords);

}  // namespace strobe::python
