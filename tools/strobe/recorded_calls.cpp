// SPDX-License-Identifier: Apache-2.0
#include "recorded_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "call/limits.h"
#include "call/problem_fields.h"

namespace strobe::program {
namespace {

using CallJson = nlohmann::json;

Status invalid(const std::string& message) { return {StatusCode::invalid_argument, message}; }

template <class Struct>
Status read_fields(const CallJson& json, Struct& value);

template <class Value>
Status read(const std::string& name, const CallJson& json, Value& value);

Status read(const std::string& name, const CallJson& json, bool& value) {
  if (!json.is_boolean()) return invalid(fmt::format("{} is {}: it must be true or false", name, json.dump()));
  value = json.get<bool>();
  return {};
}

/// Extents and lengths: a call of a real machine has no larger ones.
Status read(const std::string& name, const CallJson& json, std::int64_t& value) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const bool fits = json.is_number_integer() && json >= -1 && json <= kMost;
  if (!fits) return invalid(fmt::format("{} is {}: it must be a whole number up to {}", name, json.dump(), kMost));
  value = json.get<std::int64_t>();
  return {};
}

Status read(const std::string& name, const CallJson& json, float& value) {
  if (!json.is_number()) return invalid(fmt::format("{} is {}: it must be a number", name, json.dump()));
  value = json.get<float>();
  return {};
}

/// A string field that may be left out.
Result<std::string> text_of(const CallJson& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  return invalid(fmt::format("{} is {}: it must be a string", name, found->dump()));
}

Result<CaptureType> capture_of(const CallJson& json) {
  if (json.is_object() && json.size() == 3 && json.contains("name") && json["name"].is_string()) {
    CaptureType capture{.name = json["name"].get<std::string>()};
    std::int64_t rank = -1;
    Status status = json.contains("dtype") ? read("dtype", json["dtype"], capture.dtype) : Status();
    if (status.ok() && json.contains("rank")) status = read("rank", json["rank"], rank);
    capture.rank = static_cast<int>(rank);
    return status.ok() ? Result<CaptureType>(std::move(capture)) : status;
  }
  return invalid(fmt::format("captures has {}: a name, a dtype and a rank are expected", json.dump()));
}

/// Texts are parsed again.
Status read(const std::string& name, const CallJson& json, ExpressionShape& value) {
  if (!json.is_object()) return invalid(fmt::format("{} is {}", name, json.dump()));
  const Result<std::string> score = text_of(json, "score");
  const Result<std::string> mask = text_of(json, "mask");
  for (const Result<std::string>* text : {&score, &mask}) {
    if (!text->ok()) return text->status();
  }
  std::vector<CaptureType> captures;
  for (const CallJson& each : json.value("captures", CallJson::array())) {
    Result<CaptureType> capture = capture_of(each);
    if (!capture.ok()) return capture.status();
    captures.push_back(std::move(*capture));
  }
  const Result<ScoreFunction> function = ScoreFunction::parse(*score, *mask, captures);
  if (!function.ok()) return function.status();
  std::int64_t gradients = 0;
  if (json.contains("gradients")) {
    if (Status status = read("gradients", json["gradients"], gradients); !status.ok()) return status;
  }
  for (const auto& [field, fits] : {std::pair{"bias_fits", &value.bias_fits}, {"slopes_fit", &value.slopes_fit}}) {
    if (!json.contains(field)) continue;
    if (Status status = read(field, json[field], *fits); !status.ok()) return status;
  }
  for (std::size_t i = 0; i < captures.size(); ++i) {
    const bool wanted = (gradients >> i & 1) != 0;
    if (wanted && function->has_gradient(static_cast<int>(i))) value.gradients |= 1U << i;
  }
  value.formula = function->formula();
  return {};
}

template <class Value>
Status read(const std::string& name, const CallJson& json, Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    const auto names = names_of(value);
    const auto at = json.is_string() ? std::ranges::find(names, json.get<std::string>()) : names.end();
    if (at == names.end()) return invalid(fmt::format("{} is {}, which is none", name, json.dump()));
    value = static_cast<Value>(at - names.begin());
    return {};
  } else if constexpr (std::is_same_v<Value, Device>) {
    return invalid(fmt::format("{} is given: recorded calls have none", name));
  } else {
    return json.is_object() ? read_fields(json, value) : invalid(fmt::format("{} is {}", name, json.dump()));
  }
}

template <class Struct>
Status read_fields(const CallJson& json, Struct& value) {
  std::size_t known = 0;
  Status status;
  for_each_field(value, [&](std::string_view name, auto& field) {
    const auto found = json.find(name);
    if (found == json.end()) return;
    ++known;
    if (status.ok()) status = read(std::string(name), *found, field);
  });
  if (status.ok() && known != json.size()) return invalid("it has a field that calls do not have");
  return status;
}

/// What planners take for granted.
Status check(const AttentionProblem& p) {
  const auto extents = {p.batch,    p.heads_q, p.heads_kv, p.head_dim,  p.head_dim_v,          p.seqlen_q,
                        p.seqlen_k, p.total_q, p.total_k,  p.page_size, p.modifiers.block_size};
  if (std::ranges::any_of(extents, [](std::int64_t extent) { return extent < 0; })) {
    return invalid("an extent is negative");
  }
  if (p.head_dim < 1 || p.head_dim > kMaxHeadDim || p.head_dim_v < 1 || p.head_dim_v > kMaxHeadDimV) {
    return invalid(fmt::format("head_dim must be 1 to {} and head_dim_v 1 to {}", kMaxHeadDim, kMaxHeadDimV));
  }
  if (p.heads_kv == 0 ? p.heads_q != 0 : p.heads_q % p.heads_kv != 0) {
    return invalid(fmt::format("heads_q is {}: it must be a multiple of heads_kv, {}", p.heads_q, p.heads_kv));
  }
  return {};
}

}  // namespace

Result<AttentionProblem> call_of(std::string_view line) {
  const CallJson json = CallJson::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid("it is no call: STROBE_RECORD writes one JSON object a line");
  AttentionProblem problem;
  if (Status status = read_fields(json, problem); !status.ok()) return status;
  if (Status status = check(problem); !status.ok()) return status;
  return problem;
}

Result<std::vector<AttentionProblem>> recorded_calls(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file.is_open()) return invalid(fmt::format("'{}' cannot be read", path.string()));
  std::vector<AttentionProblem> calls;
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const Result<AttentionProblem> call = call_of(line);
    if (!call.ok()) {
      return invalid(fmt::format("'{}' line {}: {}", path.string(), number, call.status().message()));
    }
    if (std::ranges::find(calls, *call) == calls.end()) calls.push_back(*call);
  }
  return calls;
}

}  // namespace strobe::program
