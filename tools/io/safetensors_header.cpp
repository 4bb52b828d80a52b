// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_header.h"

#include <cstddef>
#include <nlohmann/json.hpp>

namespace strobe::io {
namespace {

using Json = nlohmann::json;

/// Follows {"name": {"dtype": text, "shape": [sizes], "data_offsets": [sizes]}, ...}: names at depth 1, fields at 2,
/// sizes at 3. Whatever else the JSON holds is passed over.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3 || value > static_cast<number_unsigned_t>(INT64_MAX)) return other();
    if (field_ != nullptr && field_->sizes) field_->sizes->push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ != 2) return other();
    if (field_ != nullptr) field_->text = value;
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      const auto [entry, is_new] = header_.entries.try_emplace(name);
      if (!is_new) header_.duplicate = name;
      entry_ = &entry->second;
      field_ = nullptr;
    } else if (depth_ == 2) {
      field_ = field_of(name);
      if (field_ != nullptr) *field_ = {.given = true};
    }
    return true;
  }

  bool start_object(std::size_t) override {
    is_object_ = is_object_ || depth_ == 0;
    return open();
  }
  bool end_object() override { return close(); }

  bool start_array(std::size_t) override {
    if (depth_ == 2 && field_ != nullptr) field_->sizes.emplace();
    return open();
  }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t, const std::string&, const Json::exception&) override { return false; }

  std::optional<SafetensorsHeader> result() { return is_object_ ? std::optional(std::move(header_)) : std::nullopt; }

 private:
  HeaderField* field_of(std::string_view name) const {
    if (name == "dtype") return &entry_->dtype;
    if (name == "shape") return &entry_->shape;
    if (name == "data_offsets") return &entry_->data_offsets;
    return nullptr;
  }

  /// A value that is none of the format's: a list that holds it is not a list of sizes.
  bool other() {
    if (depth_ == 3 && field_ != nullptr) field_->sizes.reset();
    return true;
  }

  bool open() {
    other();
    ++depth_;
    return true;
  }

  bool close() {
    --depth_;
    return true;
  }

  SafetensorsHeader header_;
  bool is_object_ = false;
  int depth_ = 0;
  HeaderEntry* entry_ = nullptr;  // of the last name
  HeaderField* field_ = nullptr;  // of the last key, if it is one of the format's
};

}  // namespace

std::optional<SafetensorsHeader> parse_safetensors_header(std::string_view text) {
  HeaderReader reader;
  if (!Json::sax_parse(text, &reader)) return std::nullopt;
  return reader.result();
}

}  // namespace strobe::io
