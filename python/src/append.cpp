// SPDX-License-Identifier: Apache-2.0
#include "append.h"

#include "call_options.h"
#include "errors.h"
#include "imports.h"
#include "strobe/cache.h"
#include "values.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

constexpr const char* kFloats = "float32, float16 or bfloat16";
constexpr const char* kInt32 = "int32";

/// An optional input of an append.
struct OptionalTensor {
  const char* name;
  const char* dtypes;
  ConstTensorView AppendArguments::* member;
};

constexpr OptionalTensor kOptional[] = {
    {"cu_seqlens_new", kInt32, &AppendArguments::cu_seqlens_new},
    {"page_table", kInt32, &AppendArguments::page_table},
    {"leftpad_k", kInt32, &AppendArguments::leftpad_k},
    {"cache_batch_idx", kInt32, &AppendArguments::cache_batch_idx},
    {"cos", kFloats, &AppendArguments::cos},
    {"sin", kFloats, &AppendArguments::sin},
    {"positions", kInt32, &AppendArguments::positions},
    {"q", kFloats, &AppendArguments::q},
    {"cu_seqlens_q", kInt32, &AppendArguments::cu_seqlens_q},
    {"positions_q", kInt32, &AppendArguments::positions_q},
    {"k_descale", "float32", &AppendArguments::k_descale},
    {"v_descale", "float32", &AppendArguments::v_descale},
};

}  // namespace

void append(nb::handle k_cache, nb::handle v_cache, nb::handle k_new, nb::handle v_new, nb::handle cache_seqlens,
            const nb::dict& tensors, nb::handle interleaved, nb::handle q_in_order, const nb::kwargs& keywords) {
  constexpr const char* kStored = "float32, float16, bfloat16, int8 or float8_e4m3fn";
  Imports imports = imports_for(keywords);
  AppendArguments arguments;
  arguments.k_cache = imports.view(k_cache, {"k_cache", kStored, true});
  arguments.v_cache = imports.view(v_cache, {"v_cache", kStored, true});
  arguments.k_new = imports.view(k_new, {"k_new", kFloats});
  arguments.v_new = imports.view(v_new, {"v_new", kFloats});
  arguments.cache_seqlens = imports.view(cache_seqlens, {"cache_seqlens", kInt32});
  for (const OptionalTensor& tensor : kOptional) {
    arguments.*tensor.member = imports.view(tensors.get(tensor.name, nb::none()), {tensor.name, tensor.dtypes});
  }
  arguments.q_out = imports.view(tensors.get("q_out", nb::none()), {"q_out", kFloats, true});
  arguments.interleaved = boolean({"interleaved", interleaved});
  arguments.q_in_order = boolean({"q_in_order", q_in_order});
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = strobe::append(arguments, call.execution);
  }
  raise_if_failed(status);
}

}  // namespace strobe::python
