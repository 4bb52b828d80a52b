// SPDX-License-Identifier: Apache-2.0
#include "modifiers.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "flags.h"
#include "io/npy.h"
#include "number_flag.h"

namespace strobe::program {
namespace {

/// Whether `text` has `name` as a word of its own and, where `indexed`, an index after it.
bool reads(std::string_view text, std::string_view name, bool indexed) {
  const auto is_letter = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    std::string_view rest = text.substr(at + name.size());
    if ((at > 0 && is_letter(text[at - 1])) || (!rest.empty() && is_letter(rest[0]))) continue;
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
    if (!indexed || rest.starts_with('[')) return true;
  }
  return false;
}

}  // namespace

ScoreModifiers Modifiers::views() const {
  ScoreModifiers views{.alibi_slopes = view(alibi_slopes),
                       .bias = view(bias),
                       .sink = view(sink),
                       .block_mask = view(block_mask),
                       .block_size = block_size};
  if (expression != nullptr) {
    views.function = &expression->function;
    views.captures = expression->views;
  }
  return views;
}

Result<std::shared_ptr<const Expression>> TextFlags::read() const {
  if (!given()) return std::shared_ptr<const Expression>();
  if (score.empty() && mask_text.empty()) {
    return Status(StatusCode::invalid_argument, "--capture is given without a text: give --score or --mask-text, too");
  }
  std::vector<CaptureType> types;
  std::vector<io::HostTensor> tensors;
  for (const std::string& capture : captures) {
    const std::size_t equals = capture.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return Status(StatusCode::invalid_argument, fmt::format("--capture {}: give NAME=FILE", capture));
    }
    const std::string name = capture.substr(0, equals);
    if (!reads(score, name, false) && !reads(mask_text, name, false)) {
      return Status(StatusCode::invalid_argument, fmt::format("--capture {}: no text reads it: leave it out", name));
    }
    Result<io::HostTensor> tensor = io::read_npy(capture.substr(equals + 1));
    if (!tensor.ok()) return tensor.status();
    int rank = static_cast<int>(tensor->shape.size());
    if (io::element_count(*tensor) == 1 && !reads(score, name, true) && !reads(mask_text, name, true)) {
      tensor->shape = {1};
      rank = 0;
    }
    types.push_back({name, tensor->dtype, rank});
    tensors.push_back(std::move(*tensor));
  }
  Result<ScoreFunction> function = ScoreFunction::parse(score, mask_text, std::move(types));
  if (!function.ok()) return function.status();
  const auto expression = std::make_shared<Expression>(Expression{*function, std::move(tensors), {}});
  for (const io::HostTensor& tensor : expression->captures) expression->views.emplace_back(view(tensor));
  return std::shared_ptr<const Expression>(expression);
}

void TextFlags::add_to(CLI::App& command) {
  const char* const group = "Attention";
  const auto add_text = [&](const char* name, std::string& value, const char* text) {
    command.add_option(name, value, text)->check(check_not_empty)->type_name("TEXT")->group(group);
  };
  add_text("--score", score, "what becomes of a score: \"score + slope[head] * (k - q)\"");
  add_text("--mask-text", mask_text, "whether query q sees key k: \"k <= q && q - k < 512\"");
  command
      .add_option("--capture", captures,
                  "a tensor that the texts read by this name (.npy), one element without an index; once for each")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false)
      ->group(group);
}

void ModifierFlags::add_to(CLI::App& command) {
  const char* const group = "Attention";
  const auto add_file = [&](const char* name, std::string& value, const char* text) {
    command.add_option(name, value, text)->check(check_not_empty)->type_name("FILE")->group(group);
  };
  command.add_flag("--alibi", alibi, "scores fall with the distance, by the ALiBi paper's slopes")->group(group);
  add_file("--bias", bias, "added to the scores (.npy): [batch or 1, heads or 1, queries, keys]");
  add_file("--sink", sink, "a logit of each head without a value (.npy): [heads] float32");
  add_file("--block-mask", block_mask, "visible blocks (.npy, uint8): [batch or 1, heads or 1, blocks, blocks]");
  texts.add_to(command);
  add_number(command, "--block-size", block_size, "queries and keys of a block: 64 or 128")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

Result<Modifiers> ModifierFlags::read(std::int64_t heads_q) const {
  Modifiers modifiers;
  modifiers.block_size = block_size;
  if (alibi) modifiers.alibi_slopes = alibi_slopes(heads_q);
  const auto read = [](const std::string& path, io::HostTensor& to) -> Status {
    if (path.empty()) return {};
    Result<io::HostTensor> tensor = io::read_npy(path);
    if (!tensor.ok()) return tensor.status();
    to = std::move(*tensor);
    return {};
  };
  if (Status status = read(bias, modifiers.bias); !status.ok()) return status;
  if (Status status = read(sink, modifiers.sink); !status.ok()) return status;
  if (Status status = read(block_mask, modifiers.block_mask); !status.ok()) return status;
  Result<std::shared_ptr<const Expression>> expression = texts.read();
  if (!expression.ok()) return expression.status();
  modifiers.expression = std::move(*expression);
  return modifiers;
}

std::string ModifierFlags::describe() const {
  std::string text;
  if (alibi) text += ", ALiBi";
  if (!bias.empty()) text += ", bias";
  if (!sink.empty()) text += ", sink";
  if (!block_mask.empty()) text += ", block mask";
  if (!texts.score.empty()) text += fmt::format(", score {}", texts.score);
  if (!texts.mask_text.empty()) text += fmt::format(", mask {}", texts.mask_text);
  return text;
}

io::HostTensor alibi_slopes(std::int64_t heads) {
  io::HostTensor slopes = io::make_tensor(DType::float32, {heads});
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  for (std::int64_t head = 0; head < heads; ++head) {
    const double exponent = head < power ? static_cast<double>(head + 1) / static_cast<double>(power)
                                         : static_cast<double>(head - power) / static_cast<double>(power) +
                                               0.5 / static_cast<double>(power);
    const auto slope = static_cast<float>(std::exp2(-8.0 * exponent));
    std::memcpy(slopes.bytes.data() + static_cast<std::size_t>(head) * sizeof slope, &slope, sizeof slope);
  }
  return slopes;
}

}  // namespace strobe::program
