// SPDX-License-Identifier: Apache-2.0
#include "runtime/pack/source_digests.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string_view>

#include "runtime/kernel_store.h"
#include "runtime/sha256.h"

namespace strobe::runtime {
namespace {

constexpr std::string_view kBlank = " \t";

std::string_view without_indent(std::string_view line) {
  return line.substr(std::min(line.find_first_not_of(kBlank), line.size()));
}

/// What follows #include on the line; nothing on any other line.
std::optional<std::string_view> include_of(std::string_view line) {
  line = without_indent(line);
  if (!line.starts_with('#')) return std::nullopt;
  line = without_indent(line.substr(1));
  constexpr std::string_view kDirective = "include";
  if (!line.starts_with(kDirective)) return std::nullopt;
  return without_indent(line.substr(kDirective.size()));
}

/// The name in quotes or angle brackets; nothing where a macro stands for it.
std::optional<std::string> name_in(std::string_view included) {
  const std::size_t close = included.find_first_of("\">", 1);
  if (!(included.starts_with('"') || included.starts_with('<')) || close == std::string_view::npos) return std::nullopt;
  return std::string(included.substr(1, close - 1));
}

/// What follows each #include of the text.
std::vector<std::string_view> includes_of(std::string_view text) {
  std::vector<std::string_view> includes;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (const auto included = include_of(text.substr(begin, end - begin))) includes.push_back(*included);
    begin = end + 1;
  }
  return includes;
}

/// Adds `header` and what it reaches of `own` to `reached`.
Status follow(const std::string& header, const Headers& own, std::set<std::string>& reached) {
  const auto found = own.find(header);
  if (found == own.end() || !reached.insert(header).second) return {};
  for (const std::string_view included : includes_of(found->second)) {
    const std::optional<std::string> name = name_in(included);
    if (!name.has_value()) {
      return {StatusCode::invalid_argument,
              fmt::format("{} includes {}: only a name in quotes or angle brackets can be followed", header, included)};
    }
    if (Status status = follow(*name, own, reached); !status.ok()) return status;
  }
  return {};
}

}  // namespace

std::set<std::string> named_headers(const std::set<std::string>& reached, const Headers& foreign) {
  std::set<std::string> named;
  std::vector<std::string> left(reached.begin(), reached.end());
  while (!left.empty()) {
    const std::string header = std::move(left.back());
    left.pop_back();
    const auto found = foreign.find(header);
    if (found == foreign.end() || !named.insert(header).second) continue;
    for (const std::string_view included : includes_of(found->second)) {
      if (std::optional<std::string> name = name_in(included)) left.push_back(std::move(*name));
    }
  }
  return named;
}

Result<std::vector<std::pair<std::string, std::string>>> digests_of_sources(const Headers& own,
                                                                            const Headers& foreign) {
  Sha256 cuda;
  for (const auto& [name, text] : foreign) cuda.update_field(name).update_field(text);
  const std::string cuda_digest = to_hex(cuda.finish());
  std::vector<std::pair<std::string, std::string>> digests;
  for (const auto& [header, text] : own) {
    std::set<std::string> reached;
    if (Status status = follow(header, own, reached); !status.ok()) return status;
    Sha256 digest;
    digest.update_field(cuda_digest);
    for (const std::string& name : reached) digest.update_field(name).update_field(own.at(name));
    digests.emplace_back(KernelStore::digest_entry(header), to_hex(digest.finish()));
  }
  return digests;
}

}  // namespace strobe::runtime
