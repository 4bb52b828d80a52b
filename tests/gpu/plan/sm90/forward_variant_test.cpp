// SPDX-License-Identifier: Apache-2.0
// A variant as text and as a hash.
#include "sm90/forward_variant.h"
#include "gpu/variant/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>

namespace strobe::sm90 {
namespace {

TEST(ForwardVariant, IsSpelledFieldByField) {
  forward::Config config{.rule = {.element = Element::fp16, .mask_right = true}};
  config.block_n = 112;
  config.schedule = Schedule::dealt;
  const runtime::Variant variant = forward_variant(config);
  EXPECT_EQ(variant.name, "sm90 forward (fp16, mask_right, block_n 112, dealt)");
  EXPECT_THAT(gpu::cpp_text(config.rule), testing::StartsWith("strobe::ScoreRule{.element = strobe::Element::fp16, "
                                                              ".mask_right = true, .mask_left = false, .chunked = "));
  EXPECT_EQ(variant.expression,
            std::string("strobe::sm90::forward::kernel<strobe::sm90::forward::Config{.rule = ") +
                gpu::cpp_text(config.rule) +
                ", .head_dim = 128, .head_dim_v = 128, .consumer_warpgroups = 2, .producer_warpgroups = "
                "1, .block_n = 112, .stages = 2, .q_stages = 1, .loop = "
                "strobe::sm90::forward::Loop::pipelined, .ping_pong = true, .ctas_per_sm = 1, "
                ".packed_heads = 1, .schedule = strobe::Schedule::dealt, .table_sequences = 480, .operands = "
                "strobe::Element::fp16, .keys_per_value_scale = 1, .rotated_columns = 0, .float_output = "
                "false, .stored = strobe::Element::fp16, .raw_stages = 0, .keys = "
                "strobe::sm90::forward::KeySource::tensor, .format = " +
                gpu::cpp_text(config.format) +
                ", .entries = false, .whole_chunks = false, "
                ".bias_stages = 0, .segment_blocks = 0, .keeps_in_smem = false, "
                ".looks_ahead = true, .late_values = true, .masks_by_words = true, .own_begins = false, "
                ".relative_alibi = false, .caps_in_softmax = false, .finds_work_again = false, "
                ".exponentials_ahead = 0, .pages_ahead = false, .output_stages = 2, .producer_registers = 24, "
                ".consumer_registers = 240, .output_warpgroups = 0, .output_registers = 0, .key_panels = 0, "
                ".register_columns = 0, .values_in_keys = false, .in_pairs = false, .debug = false}>");
}

TEST(ForwardVariant, EveryFieldChangesItsHash) {
  const forward::Config standard;
  std::set<std::size_t> hashes{gpu::hash_of(standard)};
  std::size_t variants = 1;
  const auto add = [&](const forward::Config& config) {
    hashes.insert(gpu::hash_of(config));
    ++variants;
  };
  std::apply(
      [&](const auto&... fields) {
        const auto change = [&](const auto& field) {
          forward::Config config = standard;
          auto& value = config.*(field.member);
          using Value = std::remove_cvref_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, bool>) {
            value = !value;
          } else if constexpr (std::is_same_v<Value, int>) {
            ++value;
          } else if constexpr (std::is_enum_v<Value>) {
            value = static_cast<Value>(1);  // no default
          } else if constexpr (std::is_same_v<Value, StoredFormat>) {
            value.row_bytes = 656;
          } else {
            value.softcap = true;
          }
          add(config);
        };
        (change(fields), ...);
      },
      fields_of(standard));
  EXPECT_EQ(hashes.size(), variants);
}

}  // namespace
}  // namespace strobe::sm90
