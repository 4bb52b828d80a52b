// SPDX-License-Identifier: Apache-2.0
#include "call_options.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "call/option_fields.h"
#include "call_tensors.h"
#include "errors.h"
#include "thread_pool.h"
#include "values.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

CausalMask causal(const Given& given) {
  if (is_boolean(given.value)) return boolean(given) ? CausalMask::bottom_right : CausalMask::none;
  constexpr const char* kAccepted = "True, False, \"bottom_right\" or \"top_left\"";
  const std::string_view text = string(given, kAccepted);
  if (text == "bottom_right") return CausalMask::bottom_right;
  if (text == "top_left") return CausalMask::top_left;
  raise(PyExc_ValueError, "{} is \"{}\": it must be {}", given.name, text, kAccepted);
}

Normalization normalization(const Given& given) {
  constexpr const char* kAccepted = "\"softmax\" or \"none\"";
  const std::string_view text = string(given, kAccepted);
  if (text == "softmax") return Normalization::softmax;
  if (text == "none") return Normalization::none;
  raise(PyExc_ValueError, "{} is \"{}\": it must be {}", given.name, text, kAccepted);
}

Engine engine(const Given& given) {
  constexpr const char* kAccepted = "automatic, cpu or gpu";
  constexpr std::pair<std::string_view, Engine> kEngines[] = {{"automatic", Engine::automatic},
                                                              {"cpu", Engine::cpu},
                                                              {"gpu", Engine::gpu},
                                                              {"ampere", Engine::ampere},   // deprecated, as
                                                              {"hopper", Engine::hopper}};  // this one
  const std::string_view text = string(given, kAccepted);
  for (const auto& [name, engine] : kEngines) {
    if (name == text) return engine;
  }
  raise(PyExc_ValueError, "{} is \"{}\": it must be {}", given.name, text, kAccepted);
}

std::string_view kernels(const Given& given) {
  constexpr const char* kAccepted = "sm90 or sm80";
  const std::string_view text = string(given, kAccepted);
  for (const std::string_view family : {"sm90", "sm80"}) {
    if (family == text) return family;
  }
  raise(PyExc_ValueError, "{} is \"{}\": it must be {}", given.name, text, kAccepted);
}

Window window(const Given& given) {
  constexpr const char* kAccepted = "a pair of integers (left, right)";
  if (PySequence_Check(given.value.ptr()) == 0 || PyUnicode_Check(given.value.ptr())) {
    raise(PyExc_TypeError, "{} is of type {}: it must be {}", given.name, nb::type_name(given.value.type()).c_str(),
          kAccepted);
  }
  const Py_ssize_t size = PySequence_Size(given.value.ptr());
  if (size != 2) raise(PyExc_ValueError, "{} has {} values: it must be {}", given.name, size, kAccepted);
  const nb::object left = given.value[0];
  const nb::object right = given.value[1];
  return {.left = integer({given.name, left}), .right = integer({given.name, right})};
}

DType out_dtype(const Given& given) {
  constexpr const char* kAccepted = "float32, float16 or bfloat16";
  return dtype_named(string(given, kAccepted), {given.name, kAccepted});
}

/// Of the language of docs/expressions.md.
std::string expression_text(const Given& given) {
  const std::string_view text = string(given, "text, or a strobe.ScoreFunction");
  if (text.empty()) raise(PyExc_ValueError, "{} is empty: it must be an expression", given.name);
  return std::string(text);
}

/// Seed and offset as four words, where they lie.
const std::uint64_t* random_state(const TensorView& words) {
  if (words.rank != 1 || words.shape[0] != 4 || words.strides[0] != 1 || words.dtype != DType::int32) {
    raise(PyExc_ValueError, "random_state must be four neighbouring int32: the words of seed and offset, low first");
  }
  return static_cast<const std::uint64_t*>(words.data);
}

void read(const Given& given, std::optional<float>& value) { value = float32_number(given); }
void read(const Given& given, float& value) { value = float32_number(given); }
void read(const Given& given, std::int64_t& value) { value = integer(given); }
void read(const Given& given, bool& value) { value = boolean(given); }

/// What a keyword that is no single field (option_fields.h) does to the options.
struct Keyword {
  std::string_view name;
  void (*read)(CallOptions& options, Imports& imports, const Given& given);
};

void read_tensor(CallOptions& options, Imports& imports, const Given& given) {
  import_tensors(imports, options.arguments, {{given.name, given.value}});
}

constexpr Keyword kKeywords[] = {
    {"causal", [](CallOptions& o, Imports&, const Given& g) { o.attention.causal = causal(g); }},
    {"window", [](CallOptions& o, Imports&, const Given& g) { o.attention.window = window(g); }},
    {"normalize", [](CallOptions& o, Imports&, const Given& g) { o.attention.normalize = normalization(g); }},
    {"alibi_slopes", read_tensor},
    {"bias", read_tensor},
    {"sink", read_tensor},
    {"block_mask", read_tensor},
    {"block_size", [](CallOptions& o, Imports&, const Given& g) { o.arguments.modifiers.block_size = integer(g); }},
    {"seed",
     [](CallOptions& o, Imports&, const Given& g) {
       o.arguments.random.seed = unsigned_integer(g);
       o.seeded = true;
     }},
    {"offset",
     [](CallOptions& o, Imports&, const Given& g) {
       o.arguments.random.offset = unsigned_integer(g);
       o.seeded = true;
     }},
    {"random_state",
     [](CallOptions& o, Imports& i, const Given& g) {
       o.arguments.random.on_device = random_state(i.view(g.value, {g.name, "int32"}));
       o.seeded = true;
     }},
    {"dropout_first_batch",
     [](CallOptions& o, Imports&, const Given& g) { o.arguments.random.first_batch = integer(g); }},
    {"dropout_first_head",
     [](CallOptions& o, Imports&, const Given& g) { o.arguments.random.first_head = integer(g); }},
    {"dropout_heads", [](CallOptions& o, Imports&, const Given& g) { o.arguments.random.heads = integer(g); }},
    {"cu_seqlens_q", read_tensor},
    {"cu_seqlens_k", read_tensor},
    {"seqused_q", read_tensor},
    {"seqused_k", read_tensor},
    {"offset_q", read_tensor},
    {"offset_k", read_tensor},
    {"max_seqlen_q", [](CallOptions& o, Imports&, const Given& g) { o.arguments.sequences.max_seqlen_q = integer(g); }},
    {"max_seqlen_k", [](CallOptions& o, Imports&, const Given& g) { o.arguments.sequences.max_seqlen_k = integer(g); }},
    {"threads", [](CallOptions& o, Imports&, const Given& g) { o.execution.threads = short_integer(g); }},
    {"q_descale", read_tensor},
    {"k_descale", read_tensor},
    {"v_descale", read_tensor},
    {"q_shift", read_tensor},
    {"v_rotation", [](CallOptions& o, Imports&,
                      const Given& g) { o.arguments.v_rotation = {.given = true, .seed = unsigned_integer(g)}; }},
    {"out_dtype", [](CallOptions& o, Imports&, const Given& g) { o.out_dtype = out_dtype(g); }},
    {"engine", [](CallOptions& o, Imports&, const Given& g) { o.execution.engine = engine(g); }},
    {"kernels", [](CallOptions& o, Imports&, const Given& g) { o.execution.kernels = kernels(g); }},
    {"stream", [](CallOptions&, Imports&, const Given&) {}},  // read by imports_for
    {"page_table", read_tensor},
    {"leftpad_k", read_tensor},
    {"cache_batch_idx", read_tensor},
    {"tree_mask", read_tensor},
    {"qv", read_tensor},
    {"score", [](CallOptions& o, Imports&, const Given& g) { o.expression.score = expression_text(g); }},
    {"mask_text", [](CallOptions& o, Imports&, const Given& g) { o.expression.mask = expression_text(g); }},
    {"captures", [](CallOptions& o, Imports&, const Given& g) { o.expression.given_captures = g.value; }},
};

constexpr bool is_keyword(std::string_view name) {
  return std::ranges::find(kKeywords, name, &Keyword::name) != std::end(kKeywords);
}

static_assert(std::ranges::all_of(kTensors<ForwardArguments>, [](const CallTensor& tensor) {
  const bool positional = tensor.name == "q" || tensor.name == "k" || tensor.name == "v";
  return tensor.role == TensorRole::output || positional || is_keyword(tensor.name);
}));

[[noreturn]] void reject(std::string_view name) {
  std::string accepted;
  const auto add = [&](std::string_view known) {
    accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", known);
  };
  for (const OptionField& option : kOptionFields) add(option.name);
  for (const Keyword& keyword : kKeywords) add(keyword.name);
  raise(PyExc_TypeError, "{} is no option of a call: the options are {}", name, accepted);
}

/// `given.value` may be None, which stands for the default.
void read_option(CallOptions& options, Imports& imports, const Given& given) {
  const bool is_default = given.value.is_none();
  const auto read_field = [&](auto& value) {
    if (!is_default) read(given, value);
  };
  if (visit_option(options.attention, given.name, read_field)) return;
  const Keyword* const found = std::ranges::find(kKeywords, std::string_view(given.name), &Keyword::name);
  if (found == std::end(kKeywords)) reject(given.name);
  if (!is_default) found->read(options, imports, {found->name.data(), given.value});  // imports keep the name
}

}  // namespace

void read_options(const nb::kwargs& keywords, Imports& imports, CallOptions& options) {
  for (const auto& [name, value] : keywords) {
    const std::string text(string({"an option's name", name}, "text"));
    read_option(options, imports, {text.c_str(), value});
  }
  options.expression.read(imports, options.arguments.modifiers);
  options.execution.stream = imports.stream();
  options.execution.parallel_for = parallel_for();
  if (options.execution.threads == 0 && !imports.on_gpu()) options.execution.threads = threads();
}

CallOptions read_options(const nb::kwargs& keywords, Imports& imports) {
  CallOptions options;
  read_options(keywords, imports, options);
  return options;
}

Imports imports_for(const nb::kwargs& keywords) {
  const nb::object stream = keywords.get("stream", nb::none());
  if (stream.is_none()) return Imports(nullptr, false);
  return Imports(reinterpret_cast<void*>(unsigned_integer({"stream", stream})), true);
}

}  // namespace strobe::python
