// SPDX-License-Identifier: Apache-2.0
#include "attention_case.h"

#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "call/option_fields.h"

namespace strobe::test {
namespace {

const char* name_of_values(Values values) {
  switch (values) {
    case Values::normal: return "normal";
    case Values::outliers: return "outliers";
    case Values::small: return "small";
    case Values::sharp: return "sharp";
  }
  return "";
}

const char* name_of_layout(Layout layout) {
  switch (layout) {
    case Layout::contiguous: return "contiguous";
    case Layout::padded: return "padded";
    case Layout::transposed: return "transposed";
    case Layout::scrambled: return "scrambled";
  }
  return "";
}

const char* name_of_guard(Guard guard) {
  switch (guard) {
    case Guard::bytes: return "bytes";
    case Guard::page_before: return "page before";
    case Guard::page_after: return "page after";
  }
  return "";
}

void append_lengths(std::ostream& out, const char* name, const std::vector<std::int32_t>& lengths) {
  if (lengths.empty()) return;
  out << ' ' << name << " [";
  for (std::size_t index = 0; index < lengths.size(); ++index) out << (index > 0 ? ", " : "") << lengths[index];
  out << ']';
}

void append_side(std::ostream& out, const char* name, const SideLengths& side) {
  out << ' ' << name << ": rows " << side.rows;
  append_lengths(out, "cu_seqlens", side.cu_seqlens);
  append_lengths(out, "seqused", side.seqused);
  append_lengths(out, "offsets", side.offsets);
  if (side.max_seqlen >= 0) out << " max " << side.max_seqlen;
  out << ';';
}

void append_options(std::ostream& out, const AttentionOptions& options) {
  if (options.causal == CausalMask::bottom_right) out << " causal";
  if (options.causal == CausalMask::top_left) out << " causal top_left";
  if (options.window != Window{}) out << " window " << options.window.left << ' ' << options.window.right;
  const auto append_value = [&]<class Value>(std::string_view name, const Value& value, bool is_default) {
    if (is_default) return;
    out << ' ' << name;
    if constexpr (std::is_same_v<Value, std::optional<float>>) {
      out << ' ' << *value;
    } else if constexpr (!std::is_same_v<Value, bool>) {
      out << ' ' << value;
    }
  };
  for_each_option(options, append_value);
  if (options.normalize == Normalization::none) out << " normalize none";
}

const char* text_of(const Sharing& sharing) {
  if (sharing.per_batch) return sharing.per_head ? " [batch, heads]" : " [batch, 1]";
  return sharing.per_head ? " [1, heads]" : " [1, 1]";
}

void append_modifiers(std::ostream& out, const AttentionCase& attention) {
  if (attention.alibi == Alibi::per_head) out << " alibi [heads]";
  if (attention.alibi == Alibi::per_batch_and_head) out << " alibi [batch, heads]";
  if (attention.bias) {
    out << " bias " << name_of(attention.bias->dtype) << text_of(attention.bias->sharing) << " -inf "
        << attention.bias->hidden << " d_bias " << attention.bias->wants_gradient << " aligned "
        << attention.bias->aligned;
  }
  if (attention.has_sink) out << " sink d_sink " << attention.wants_d_sink;
  if (attention.has_qv) out << " qv";
  if (attention.blocks) {
    out << " blocks " << attention.blocks->size << text_of(attention.blocks->sharing) << " visible "
        << attention.blocks->visible;
  }
  if (attention.tree) {
    out << " tree";
    if (attention.tree->random_bits) out << " of random bits, visible " << attention.tree->visible;
  }
  if (attention.text) out << " score \"" << attention.text->score << "\" mask \"" << attention.text->mask << '"';
  if (attention.options.dropout != 0.0F) {
    const RandomState& random = attention.random;
    out << " random " << random.seed << ' ' << random.offset << " at " << random.first_batch << ' ' << random.first_head
        << " of " << random.heads;
  }
}

}  // namespace

std::string describe(const AttentionCase& attention) {
  std::ostringstream out;
  out << name_of(attention.dtype) << " batch " << attention.batch << " heads " << attention.heads_q << '/'
      << attention.heads_kv << " head_dim " << attention.head_dim << '/' << attention.head_dim_v << ';';
  append_side(out, "q", attention.q);
  append_side(out, "k", attention.k);
  append_options(out, attention.options);
  append_modifiers(out, attention);
  out << "; lse " << attention.wants_lse << " d_lse " << attention.has_d_lse << " max_logits "
      << attention.wants_max_logits << ' ' << name_of_values(attention.values) << ' '
      << name_of_layout(attention.placement.layout) << " guard " << name_of_guard(attention.placement.guard)
      << " alignment " << attention.placement.alignment << " seed " << attention.seed;
  return out.str();
}

std::vector<std::string> options_of(const AttentionCase& attention) {
  const AttentionOptions& options = attention.options;
  std::vector<std::string> names;
  const bool backward = has_backward(attention);
  const auto add = [&names](std::string_view name, bool asked) {
    if (asked) names.emplace_back(name);
  };
  add("packed q", !attention.q.cu_seqlens.empty());
  add("packed k", !attention.k.cu_seqlens.empty());
  add("seqused", !attention.q.seqused.empty() || !attention.k.seqused.empty());
  add("grouped heads", attention.heads_q != attention.heads_kv);
  for_each_option(options, [&](std::string_view name, const auto&, bool is_default) { add(name, !is_default); });
  add("causal", options.causal == CausalMask::bottom_right);
  add("causal top_left", options.causal == CausalMask::top_left);
  add("window", options.window != Window{});
  add("alibi", attention.alibi != Alibi::none);
  add("bias", attention.bias.has_value());
  add("d_bias", attention.bias && attention.bias->wants_gradient && backward);
  add("normalize", !is_normalized(attention));
  add("text", attention.text.has_value());
  add("sink", attention.has_sink);
  add("d_sink", attention.has_sink && attention.wants_d_sink && backward);
  add("block_mask", attention.blocks.has_value());
  add("qv", attention.has_qv);
  add("max_logits", attention.wants_max_logits);
  add("d_lse", attention.has_d_lse && backward);
  add("tree_mask", attention.tree.has_value());
  add("offsets", !attention.q.offsets.empty() || !attention.k.offsets.empty());
  add("backward", backward);
  return names;
}

}  // namespace strobe::test
