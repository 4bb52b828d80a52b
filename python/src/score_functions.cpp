// SPDX-License-Identifier: Apache-2.0
#include "score_functions.h"

#include <fmt/format.h>

#include <cctype>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace strobe::python {
namespace {

/// The least recently used of more than kMost functions goes.
class Functions {
 public:
  SharedFunction find(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    by_age_.splice(by_age_.begin(), by_age_, found->second);
    return found->second->second;
  }

  void insert(const std::string& key, const SharedFunction& function) {
    const std::scoped_lock lock(mutex_);
    if (by_key_.contains(key)) return;
    by_age_.emplace_front(key, function);
    by_key_[key] = by_age_.begin();
    if (by_age_.size() <= kMost) return;
    by_key_.erase(by_age_.back().first);
    by_age_.pop_back();
  }

 private:
  static constexpr std::size_t kMost = 256;

  std::mutex mutex_;
  std::list<std::pair<std::string, SharedFunction>> by_age_;
  std::unordered_map<std::string, std::list<std::pair<std::string, SharedFunction>>::iterator> by_key_;
};

std::string key_of(const std::string& score, const std::string& mask, const std::vector<CaptureType>& captures) {
  std::string key = fmt::format("{}:{}{}:{}", score.size(), score, mask.size(), mask);
  for (const CaptureType& capture : captures) {
    key += fmt::format(" {}:{}:{}", capture.name, static_cast<int>(capture.dtype), capture.rank);
  }
  return key;
}

/// Whether `text` has `name` as a word of its own.
bool has_word(std::string_view text, std::string_view name) {
  const auto is_letter = [&](std::size_t at) {
    return at < text.size() && (text[at] == '_' || std::isalnum(static_cast<unsigned char>(text[at])) != 0);
  };
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + name.size())) return true;
  }
  return false;
}

}  // namespace

Result<SharedFunction> parsed_once(const std::string& score, const std::string& mask,
                                   std::vector<CaptureType> captures) {
  static Functions& functions = *new Functions;  // threads may call while the process ends
  const std::string key = key_of(score, mask, captures);
  if (SharedFunction known = functions.find(key)) return known;
  Result<ScoreFunction> function = ScoreFunction::parse(score, mask, std::move(captures));
  if (!function.ok()) return function.status();
  for (const CaptureType& capture : function->captures()) {
    if (has_word(score, capture.name) || has_word(mask, capture.name)) continue;
    return Status(StatusCode::invalid_argument,
                  fmt::format("captures: `{}` is read by no text: leave it out", capture.name));
  }
  auto shared = std::make_shared<const ScoreFunction>(*std::move(function));
  functions.insert(key, shared);
  return SharedFunction(std::move(shared));
}

}  // namespace strobe::python
