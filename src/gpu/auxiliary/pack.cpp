// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/pack.h"

#include <span>
#include <utility>

#include "call/eight_bit.h"
#include "expression/formula.h"
#include "gpu/auxiliary/append_variant.h"
#include "gpu/auxiliary/merge_variant.h"
#include "gpu/auxiliary/quantize_variant.h"
#include "gpu/plan/text_blocks.h"

namespace strobe::gpu {

void add_quantizers(std::string_view architecture, PackList& list) {
  for (const int head_dim : {64, 128, 256}) {
    list.add(key_mean_variant(head_dim, architecture), 0);
    for (const bool packed : {false, true}) {
      list.add(key_sums_variant({.head_dim = head_dim, .packed = packed}, architecture), 0);
    }
    for (const auto& [e4m3, packed] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
      auxiliary::QuantizeConfig config{.head_dim = head_dim, .head_dim_v = head_dim, .e4m3 = e4m3, .packed = packed};
      config.whole_blocks = e4m3 && auxiliary::tile_rows(config) < kBlockRows;
      list.add(quantize_variant(config, architecture), auxiliary::quantize_smem_bytes(config));
    }
  }
}

void add_merges(std::string_view architecture, PackList& list) {
  using enum Element;
  for (const auto& [source, destination] :
       {std::pair{fp32, bf16}, std::pair{fp32, fp16}, std::pair{bf16, bf16}, std::pair{fp16, fp16}}) {
    list.add(merge_variant({.source = source, .destination = destination}, architecture), 0);
  }
}

void add_appends(std::string_view architecture, PackList& list) {
  using enum Element;
  for (const Element source : {bf16, fp16}) {
    for (const Element cache : {source, int8, e4m3}) {
      for (const auto rotation :
           {auxiliary::Rotation::none, auxiliary::Rotation::halves, auxiliary::Rotation::interleaved}) {
        list.add(append_variant({.source = source, .cache = cache, .rotation = rotation}, architecture), 0);
      }
    }
  }
  // Scales of rows, as models in bfloat16 take them: keys that are rotated already, or in the way of most models.
  for (const Element cache : {int8, e4m3}) {
    for (const auto rotation : {auxiliary::Rotation::none, auxiliary::Rotation::halves}) {
      const auxiliary::AppendConfig config{.source = bf16, .cache = cache, .rotation = rotation, .row_scales = true};
      list.add(append_variant(config, architecture), 0);
    }
  }
}

AttentionProblem with_text_mask(AttentionProblem problem, std::string_view mask) {
  const expression::Capture document{.name = "document", .dtype = DType::int32, .rank = 1};
  problem.expression.formula = *expression::Formula::parse("", mask, std::span(&document, 1));
  return with_text_blocks(std::move(problem));
}

}  // namespace strobe::gpu
