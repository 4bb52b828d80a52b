// SPDX-License-Identifier: Apache-2.0
#include "sparse.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <string>

#include "call/row_format.h"
#include "call_options.h"
#include "errors.h"
#include "imports.h"
#include "strobe/sparse.h"
#include "values.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

constexpr const char* kFloats = "float32, float16 or bfloat16";
constexpr const char* kIntegers = "int32";

/// The enumerator of that name.
template <class Enumeration>
Enumeration named(const Given& given, Enumeration last, const char* accepted) {
  const std::string_view name = string(given, accepted);
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    const auto value = static_cast<Enumeration>(i);
    if (name == name_of(value)) return value;
  }
  raise(PyExc_ValueError, "{} is \"{}\": it must be {}", given.name, name, accepted);
}

RowPart read_part(nb::handle part) {
  const auto number = [&](const char* name) { return short_integer({name, part.attr(name)}); };
  RowPart to;
  to.element = named({"element", part.attr("element")}, RowElement::float4_e2m1,
                     "float32, bfloat16, float16, float8_e4m3, int8, int4 or float4_e2m1");
  to.columns = number("columns");
  to.offset = number("offset");
  if (const nb::object scale = part.attr("scale"); !scale.is_none()) {
    to.scale = named({"scale", scale}, RowScale::float8_e4m3,
                     "float32, bfloat16, float8_e8m0, float32_power_of_two, float8_e4m3 or None");
  }
  to.scale_columns = number("scale_columns");
  to.scale_offset = number("scale_offset");
  return to;
}

/// Of a strobe.RowFormat; None is no format.
RowFormat read_format(nb::handle format) {
  RowFormat to;
  if (format.is_none()) return to;
  const auto number = [&](const char* name) { return short_integer({name, format.attr(name)}); };
  for (const nb::handle part : format.attr("parts")) {
    if (to.part_count < kMaxRowParts) to.parts[static_cast<std::size_t>(to.part_count)] = read_part(part);
    ++to.part_count;
  }
  to.head_dim_v = number("head_dim_v");
  to.row_bytes = number("row_bytes");
  to.tail_bytes = number("tail_bytes");
  to.alignment = number("alignment");
  return to;
}

/// The fields of a format, by the names that RowFormat has in Python.
nb::dict fields_of(const RowFormat& format) {
  nb::list parts;
  for (const RowPart& part : parts_of(format)) {
    nb::dict fields;
    fields["element"] = name_of(part.element);
    fields["columns"] = part.columns;
    fields["offset"] = part.offset;
    fields["scale"] = part.scale == RowScale::none ? nb::none() : nb::object(nb::str(name_of(part.scale)));
    fields["scale_columns"] = part.scale_columns;
    fields["scale_offset"] = part.scale_offset;
    parts.append(fields);
  }
  nb::dict to;
  to["parts"] = parts;
  to["head_dim_v"] = format.head_dim_v;
  to["row_bytes"] = format.row_bytes;
  to["tail_bytes"] = format.tail_bytes;
  to["alignment"] = format.alignment;
  return to;
}

nb::dict ready_row_format(const std::string& name) {
  return fields_of(name == "deepseek_v32"            ? deepseek_v32_rows()
                   : name == "deepseek_v4"           ? deepseek_v4_rows()
                   : name == "deepseek_v41"          ? deepseek_v41_rows()
                   : name == "deepseek_v41_four_bit" ? deepseek_v41_four_bit_rows()
                                                     : mla_bfloat16_rows());
}

nb::dict eight_bit_row_format(nb::handle element, nb::handle columns) {
  return fields_of(eight_bit_rows(named({"element", element}, RowElement::float4_e2m1, "float8_e4m3 or int8"),
                                  short_integer({"columns", columns})));
}

std::string describe(nb::handle format) {
  const RowFormat read = read_format(format);
  raise_if_failed(check_row_format(read));
  return describe_row_format(read);
}

void encode(nb::handle rows, nb::handle cache, nb::handle format, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  const TensorView from = imports.view(rows, {"rows", kFloats});
  const TensorView to = imports.view(cache, {"cache", "uint8", true});
  const RowFormat read = read_format(format);
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = encode_rows(from, to, read, call.execution);
  }
  raise_if_failed(status);
}

void decode(nb::handle cache, nb::handle rows, nb::handle format, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  const TensorView from = imports.view(cache, {"cache", "uint8"});
  const TensorView to = imports.view(rows, {"rows", kFloats, true});
  const RowFormat read = read_format(format);
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = decode_rows(from, to, read, call.execution);
  }
  raise_if_failed(status);
}

void append(nb::handle cache, nb::handle rows, nb::handle cache_seqlens, nb::handle cu_seqlens_new,
            nb::handle page_table, nb::handle cache_batch_idx, nb::handle format, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  AppendRowsArguments arguments;
  arguments.cache = imports.view(cache, {"cache", "uint8", true});
  arguments.rows = imports.view(rows, {"rows", kFloats});
  arguments.cache_seqlens = imports.view(cache_seqlens, {"cache_seqlens", kIntegers});
  arguments.cu_seqlens_new = imports.view(cu_seqlens_new, {"cu_seqlens_new", kIntegers});
  arguments.page_table = imports.view(page_table, {"page_table", kIntegers});
  arguments.cache_batch_idx = imports.view(cache_batch_idx, {"cache_batch_idx", kIntegers});
  const RowFormat read = read_format(format);
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = append_rows(arguments, read, call.execution);
  }
  raise_if_failed(status);
}

/// A strobe.SparseSource.
SparseSource read_source(nb::handle source, Imports& imports) {
  const auto tensor = [&](const char* name, const char* dtypes) -> ConstTensorView {
    return imports.view(source.attr(name), {name, dtypes});
  };
  SparseSource to;
  to.k_format = read_format(source.attr("k_format"));
  to.v_format = read_format(source.attr("v_format"));
  to.k = tensor("k", to.k_format.given() ? "uint8" : kFloats);
  to.v = tensor("v", to.v_format.given() ? "uint8" : kFloats);
  to.indices = tensor("indices", kIntegers);
  to.topk_length = tensor("topk_length", kIntegers);
  to.block_size = integer({"block_size", source.attr("block_size")});
  to.cu_seqlens_k = tensor("cu_seqlens_k", kIntegers);
  to.page_table = tensor("page_table", kIntegers);
  to.seqused_k = tensor("seqused_k", kIntegers);
  to.in_pool = boolean({"in_pool", source.attr("in_pool")});
  to.causal = boolean({"causal", source.attr("causal")});
  return to;
}

void read_sources(const nb::list& sources, Imports& imports, std::array<SparseSource, kMaxSparseSources>& to) {
  for (std::size_t i = 0; i < std::min(sources.size(), to.size()); ++i) to[i] = read_source(sources[i], imports);
}

SparseOptions read_sparse_options(nb::handle scale, nb::handle softcap) {
  SparseOptions options;
  if (!scale.is_none()) options.scale = float32_number({"scale", scale});
  options.softcap = float32_number({"softcap", softcap});
  return options;
}

void forward(nb::handle q, const nb::list& sources, nb::handle o, nb::handle lse, nb::handle sink,
             nb::handle cu_seqlens_q, nb::handle scale, nb::handle softcap, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  SparseForwardArguments arguments;
  arguments.q = imports.view(q, {"q", kFloats});
  read_sources(sources, imports, arguments.sources);
  arguments.o = imports.view(o, {"out", kFloats, true});
  arguments.lse = imports.view(lse, {"lse", "float32", true});
  arguments.sink = imports.view(sink, {"sink", "float32"});
  arguments.cu_seqlens_q = imports.view(cu_seqlens_q, {"cu_seqlens_q", kIntegers});
  const SparseOptions options = read_sparse_options(scale, softcap);
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = sparse_forward(arguments, options, call.execution);
  }
  raise_if_failed(status);
}

/// Of `head_dim_v` columns of V, with LSE where it is wanted.
std::string explain(nb::handle q, const nb::list& sources, nb::handle head_dim_v, bool lse, nb::handle sink,
                    nb::handle cu_seqlens_q, nb::handle scale, nb::handle softcap, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  SparseForwardArguments arguments;
  arguments.q = imports.view(q, {"q", kFloats});
  read_sources(sources, imports, arguments.sources);
  const auto& shape = arguments.q.shape;
  const std::int64_t columns = integer({"head_dim_v", head_dim_v});
  arguments.o = arguments.q.rank == 4 ? tensor(static_cast<float*>(nullptr), {shape[0], shape[1], shape[2], columns})
                                      : tensor(static_cast<float*>(nullptr), {shape[0], shape[1], columns});
  arguments.o.dtype = arguments.q.dtype;
  arguments.o.device = arguments.q.device;
  if (lse) {
    arguments.lse = arguments.q.rank == 4 ? tensor(static_cast<float*>(nullptr), {shape[0], shape[2], shape[1]})
                                          : tensor(static_cast<float*>(nullptr), {shape[1], shape[0]});
    arguments.lse.device = arguments.q.device;
  }
  arguments.sink = imports.view(sink, {"sink", "float32"});
  arguments.cu_seqlens_q = imports.view(cu_seqlens_q, {"cu_seqlens_q", kIntegers});
  const SparseOptions options = read_sparse_options(scale, softcap);
  const CallOptions call = read_options(keywords, imports);
  const Result<std::string> text = explain_sparse_forward(arguments, options, call.execution);
  raise_if_failed(text.status());
  return *text;
}

/// `gradients` has a pair (dk, dv) for each source, dv None where V is part of K.
void backward(nb::handle q, const nb::list& sources, nb::handle o, nb::handle lse, nb::handle sink,
              nb::handle cu_seqlens_q, nb::handle scale, nb::handle softcap, nb::handle d_o, nb::handle d_lse,
              nb::handle dq, const nb::list& gradients, nb::handle d_sink, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  SparseBackwardArguments arguments;
  SparseForwardArguments& forward = arguments.forward;
  forward.q = imports.view(q, {"q", kFloats});
  read_sources(sources, imports, forward.sources);
  const auto read_only = [](const ConstTensorView& view) {
    return TensorView{const_cast<void*>(view.data), view.dtype, view.device, view.rank, view.shape, view.strides};
  };
  forward.o = read_only(imports.view(o, {"o", kFloats}));
  forward.lse = read_only(imports.view(lse, {"lse", "float32"}));
  forward.sink = imports.view(sink, {"sink", "float32"});
  forward.cu_seqlens_q = imports.view(cu_seqlens_q, {"cu_seqlens_q", kIntegers});
  arguments.d_o = imports.view(d_o, {"d_o", kFloats});
  arguments.d_lse = imports.view(d_lse, {"d_lse", "float32"});
  arguments.dq = imports.view(dq, {"dq", kFloats, true});
  for (std::size_t i = 0; i < std::min(gradients.size(), arguments.gradients.size()); ++i) {
    arguments.gradients[i] = {imports.view(gradients[i][0], {"dk", kFloats, true}),
                              imports.view(gradients[i][1], {"dv", kFloats, true})};
  }
  arguments.d_sink = imports.view(d_sink, {"d_sink", "float32", true});
  const SparseOptions options = read_sparse_options(scale, softcap);
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = sparse_backward(arguments, options, call.execution);
  }
  raise_if_failed(status);
}

}  // namespace

void bind_sparse(nb::module_& module) {
  module.def("ready_row_format", &ready_row_format, nb::arg("name"));
  module.def("eight_bit_row_format", &eight_bit_row_format, nb::arg("element").none(), nb::arg("columns").none());
  module.def("describe_row_format", &describe, nb::arg("format"));
  module.def("encode_rows", &encode, nb::arg("rows").none(), nb::arg("cache").none(), nb::arg("format"),
             nb::arg("options"));
  module.def("decode_rows", &decode, nb::arg("cache").none(), nb::arg("rows").none(), nb::arg("format"),
             nb::arg("options"));
  module.def("append_rows", &append, nb::arg("cache").none(), nb::arg("rows").none(), nb::arg("cache_seqlens").none(),
             nb::arg("cu_seqlens_new").none(), nb::arg("page_table").none(), nb::arg("cache_batch_idx").none(),
             nb::arg("format"), nb::arg("options"));
  module.def("sparse_forward", &forward, nb::arg("q").none(), nb::arg("sources"), nb::arg("o").none(),
             nb::arg("lse").none(), nb::arg("sink").none(), nb::arg("cu_seqlens_q").none(), nb::arg("scale").none(),
             nb::arg("softcap").none(), nb::arg("options"));
  module.def("explain_sparse", &explain, nb::arg("q").none(), nb::arg("sources"), nb::arg("head_dim_v").none(),
             nb::arg("lse"), nb::arg("sink").none(), nb::arg("cu_seqlens_q").none(), nb::arg("scale").none(),
             nb::arg("softcap").none(), nb::arg("options"));
  module.def("sparse_backward", &backward, nb::arg("q").none(), nb::arg("sources"), nb::arg("o").none(),
             nb::arg("lse").none(), nb::arg("sink").none(), nb::arg("cu_seqlens_q").none(), nb::arg("scale").none(),
             nb::arg("softcap").none(), nb::arg("d_o").none(), nb::arg("d_lse").none(), nb::arg("dq").none(),
             nb::arg("gradients"), nb::arg("d_sink").none(), nb::arg("options"));
}

}  // namespace strobe::python
