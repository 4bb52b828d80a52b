// SPDX-License-Identifier: Apache-2.0
#include "random_case.h"

#include <algorithm>

#include "call/arithmetic.h"
#include "call/limits.h"

namespace strobe::test {
namespace {

// How much a case may compute, in multiply-adds of S = Q K^T and its like, and how long its sequences are: many cases
// are tiny, some are beyond every block size. Keeps thousands of cases within minutes.
struct Extent {
  double most_work;
  std::int64_t longest;
};

Extent random_extent(const EngineLimits& limits, Random& random) {
  if (limits.most_queries > 0) return {limits.longest > 400 ? 6e8 : 4e6, limits.longest};
  if (limits.longest > 400 && random.chance(0.5)) return {6e8, limits.longest};
  if (random.chance(0.7)) return {2e5, 140};
  if (random.chance(0.9)) return {3e6, 300};
  return {4e7, 400};
}

// One in ten sequences has length 0 or 1.
std::int64_t random_length(std::int64_t longest, Random& random) {
  return random.chance(0.1) ? random.integer(0, 1) : random.integer(0, random.chance(0.3) ? 40 : longest);
}

std::int64_t random_head_dim(std::int64_t largest, Random& random) {
  if (random.chance(0.5)) return random.integer(1, 40);
  if (random.chance(0.6)) return random.one_of<std::int64_t>({32, 64, 80, 96, 128, 192, 256});
  return random.integer(1, largest);
}

void draw_head_dims(AttentionCase& attention, const EngineLimits& limits, Random& random) {
  if (limits.head_dims.empty()) {
    if (random.chance(0.05)) {  // of models: Kimi's, Gemma's, DeepSeek's
      using Pair = std::array<std::int64_t, 2>;
      const Pair pair = random.one_of({Pair{320, 256}, Pair{512, 512}, Pair{576, 512}, Pair{288, 288}});
      attention.head_dim = pair[0];
      attention.head_dim_v = pair[1];
      return;
    }
    attention.head_dim = random_head_dim(kMaxHeadDim, random);
    attention.head_dim_v = attention.head_dim <= kMaxHeadDimV && random.chance(0.6)
                               ? attention.head_dim
                               : random_head_dim(kMaxHeadDimV, random);
    return;
  }
  const auto& pair = limits.head_dims[random.integer(0, static_cast<std::int64_t>(limits.head_dims.size()) - 1)];
  const auto less = [&] {
    return random.chance(0.6) ? 0 : random.integer(0, 24 / limits.alignment) * limits.alignment;
  };
  attention.head_dim = pair[0] - less();
  attention.head_dim_v = pair[1] - less();
}

// Packed sequences; rows before the first used one and after the last may belong to none.
SideLengths packed_side(std::int64_t batch, std::int64_t longest_drawn, Random& random) {
  SideLengths side;
  std::int64_t longest = 0;
  side.cu_seqlens.push_back(0);
  for (std::int64_t index = 0; index < batch; ++index) {
    const std::int64_t length = random_length(longest_drawn, random);
    longest = std::max(longest, length);
    side.cu_seqlens.push_back(side.cu_seqlens.back() + static_cast<std::int32_t>(length));
  }
  side.rows = side.cu_seqlens.back() + (random.chance(0.2) ? random.integer(1, 20) : 0);
  if (random.chance(0.5)) side.max_seqlen = longest;
  return side;
}

SideLengths random_side(std::int64_t batch, std::int64_t longest, Random& random) {
  SideLengths side;
  if (random.chance(0.3)) {
    side = packed_side(batch, longest, random);
  } else {
    side.rows = random_length(longest, random);
  }
  if (random.chance(0.3)) {
    for (std::int64_t index = 0; index < batch; ++index) {
      const std::int64_t length =
          side.cu_seqlens.empty() ? side.rows : side.cu_seqlens[index + 1] - side.cu_seqlens[index];
      side.seqused.push_back(static_cast<std::int32_t>(random.integer(0, length)));
    }
  }
  return side;
}

AttentionOptions random_options(DType dtype, const EngineLimits& limits, Random& random) {
  AttentionOptions options;
  options.causal = random.one_of({CausalMask::none, CausalMask::none, CausalMask::bottom_right, CausalMask::top_left});
  if (random.chance(0.25)) {
    options.window.left = random.chance(0.3) ? -1 : random.integer(0, 150);
    options.window.right = random.chance(0.3) ? -1 : random.integer(0, 150);
  }
  if (random.chance(0.25)) options.softcap = random.one_of({1.0F, 15.0F, 50.0F});
  if (random.chance(0.3)) {
    options.scale =
        limits.any_scale ? random.one_of({1.0F, 0.125F, 0.3F, -0.25F, 0.0F}) : random.one_of({1.0F, 0.125F, 0.3F});
  }
  if (limits.chunk && random.chance(0.2)) options.chunk = random.integer(1, random.chance(0.5) ? 20 : 200);
  // The last two round to nothing and, but for float16, to all but one in 256.
  if (limits.dropout && random.chance(0.25)) {
    options.dropout =
        random.one_of({0.1F, 0.1F, 0.5F, 0.5F, 0.9F, 0.99F, 1e-6F, dtype == DType::float16 ? 0.95F : 0.998F});
  }
  options.deterministic = random.chance(0.2);
  if (random.chance(0.2)) options.log_length = random.one_of<std::int64_t>({2, 7, 64});
  return options;
}

Sharing random_sharing(Random& random) { return {.per_batch = random.chance(0.5), .per_head = random.chance(0.5)}; }

void add_modifiers(AttentionCase& attention, const EngineLimits& limits, Random& random) {
  if (limits.alibi && random.chance(0.25)) {
    attention.alibi = random.one_of({Alibi::per_head, Alibi::per_batch_and_head});
  }
  const bool packed = !attention.q.cu_seqlens.empty() || !attention.k.cu_seqlens.empty();
  if (limits.bias && !packed && random.chance(0.4)) {
    attention.bias = {.dtype = random.chance(0.5) ? DType::float32 : attention.dtype,
                      .sharing = random_sharing(random),
                      .hidden = random.one_of({0.0, 0.0, 0.1, 0.9}),
                      .wants_gradient = random.chance(0.8)};
  }
  attention.has_sink = limits.sink && random.chance(0.25);
  attention.wants_d_sink = random.chance(0.8);
  if (limits.block_mask && random.chance(0.25)) {
    attention.blocks = {.size = random.one_of<std::int64_t>({64, 128}),
                        .sharing = random_sharing(random),
                        .visible = random.one_of({0.1, 0.5, 0.9})};
  }
  attention.wants_max_logits = limits.max_logits && random.chance(0.3);
}

// Sequences of at most 64 queries, which the plan must know.
void draw_tree(AttentionCase& attention, Random& random) {
  constexpr std::int64_t kMostQueries = 64;
  attention.q = random_side(attention.batch, random.one_of<std::int64_t>({8, kMostQueries}), random);
  const bool packed = !attention.q.cu_seqlens.empty();
  if (packed && attention.q.rows > kMostQueries && attention.q.max_seqlen < 0) attention.q.max_seqlen = kMostQueries;
  if (packed) attention.bias.reset();
  attention.blocks.reset();
  attention.has_d_lse = false;
  attention.tree = {.random_bits = random.chance(0.5), .visible = random.one_of({0.05, 0.5, 0.9})};
}

TextShape text_shape(const AttentionCase& attention) {
  return {attention.batch, attention.heads_q, attention.heads_kv, attention.q.rows, attention.k.rows};
}

double work(const AttentionCase& attention) {
  const double entries = attention.q.cu_seqlens.empty() || attention.k.cu_seqlens.empty()
                             ? static_cast<double>(std::max<std::int64_t>(1, attention.batch))
                             : 1.0;
  return entries * static_cast<double>(attention.heads_q) * static_cast<double>(attention.q.rows) *
         static_cast<double>(attention.k.rows) * static_cast<double>(attention.head_dim + attention.head_dim_v);
}

Placement random_placement(const EngineLimits& limits, Random& random) {
  Placement placement;
  placement.layout = random.one_of({Layout::contiguous, Layout::padded, Layout::transposed, Layout::scrambled});
  placement.guard = random.one_of({Guard::bytes, Guard::page_before, Guard::page_after});
  placement.alignment = limits.alignment;
  if (limits.alignment > 1) placement.guard = Guard::bytes;  // a tensor's end at the end of a page would not be aligned
  return placement;
}

}  // namespace

void draw_unnormalized(AttentionCase& attention, const EngineLimits& limits, Random& random) {
  attention.options.normalize = Normalization::none;
  attention.has_sink = attention.has_d_lse = attention.wants_lse = attention.wants_max_logits = false;
  if (!limits.text || random.chance(0.5)) return;
  const std::vector<TextCase> texts = unnormalized_texts(text_shape(attention));
  attention.text = texts[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(texts.size()) - 1))];
  if (attention.bias) attention.bias->hidden = 0.0;  // score * sigmoid(score) makes no number of -inf
}

void draw_offsets(AttentionCase& attention, Random& random) {
  constexpr std::int64_t kPositions = std::int64_t{1} << 30;
  const auto beginning = [&random] {
    if (random.chance(0.1)) return kPositions - random.integer(2000, 100000);
    return random.chance(0.4) ? 16 * random.integer(0, 40) : random.integer(0, 700);
  };
  std::vector<std::int32_t> q;
  std::vector<std::int32_t> k;
  for (std::int64_t index = 0; index < attention.batch; ++index) {
    const std::int64_t first_key = random.chance(0.2) ? 0 : std::min(beginning(), kPositions - attention.k.rows);
    const std::int64_t behind = random.integer(-attention.q.rows - 20, attention.k.rows + 20);
    const std::int64_t first_query = random.chance(0.1) ? beginning() : std::max<std::int64_t>(first_key + behind, 0);
    q.push_back(static_cast<std::int32_t>(std::min(first_query, kPositions - attention.q.rows)));
    k.push_back(static_cast<std::int32_t>(first_key));
  }
  const double which = random.uniform();
  if (which < 0.9) attention.q.offsets = q;
  if (which > 0.1) attention.k.offsets = k;
  attention.options.log_length = 0;
  attention.tree.reset();
}

AttentionCase random_case(std::uint64_t seed, const EngineLimits& limits) {
  Random random(seed);
  const Extent extent = random_extent(limits, random);
  AttentionCase attention;
  do {
    attention = {};
    attention.dtype = limits.dtypes[random.integer(0, static_cast<std::int64_t>(limits.dtypes.size()) - 1)];
    attention.batch = random.integer(random.chance(0.05) ? 0 : 1, 4);
    attention.heads_kv = random.integer(1, 3);
    attention.heads_q = attention.heads_kv * random.one_of<std::int64_t>({1, 1, 2, 3, 5});
    draw_head_dims(attention, limits, random);
    attention.q = random_side(attention.batch, limits.most_queries > 0 ? limits.most_queries : extent.longest, random);
    attention.k = random_side(attention.batch, extent.longest, random);
  } while (work(attention) > extent.most_work);
  attention.options = random_options(attention.dtype, limits, random);
  add_modifiers(attention, limits, random);
  attention.random = {.seed = seed * 0x9E3779B97F4A7C15U, .offset = seed * 0xD1B54A32D192ED03U};
  attention.wants_lse = random.chance(0.9);
  attention.has_d_lse = random.chance(0.4);
  if (!limits.backward) attention.has_d_lse = false;
  attention.values = random.one_of({Values::normal, Values::normal, Values::outliers, Values::small, Values::sharp});
  attention.placement = random_placement(limits, random);
  attention.options.row_invariant = limits.row_invariant && random.chance(0.2);
  if (attention.options.row_invariant) attention.options.log_length = 0;
  if (limits.tree_mask && random.chance(0.15)) draw_tree(attention, random);
  if (limits.offsets && !attention.tree && random.chance(0.15)) draw_offsets(attention, random);
  if (attention.options.dropout != 0.0F && random.chance(0.3)) {  // of a larger call
    attention.random.first_batch = random.integer(0, 5);
    attention.random.first_head = random.integer(0, 5);
    attention.random.heads = attention.random.first_head + attention.heads_q + random.integer(0, 3);
  }
  if (limits.text && random.chance(0.25)) {
    attention.text = random_text(text_shape(attention), random);
    // Most texts make no number of an infinite score.
    if (attention.bias && !attention.text->score.empty()) attention.bias->hidden = 0.0;
  }
  if (limits.normalize && random.chance(0.2)) draw_unnormalized(attention, limits, random);
  attention.has_qv = limits.qv && random.chance(0.15);
  attention.seed = seed;
  return attention;
}

bool contradict(const std::string& one, const std::string& other) {
  const auto forbids = [](const std::string& name, const std::string& with) {
    if (name == "tree_mask") return with == "block_mask" || with == "backward" || with.starts_with("d_");
    if (name == "offsets") return with == "log_length" || with == "tree_mask";
    if (name == "row_invariant") return with == "log_length";
    if (name == "normalize") return with.ends_with("sink") || with == "d_lse" || with == "max_logits";
    return (name.ends_with("bias") && with.starts_with("packed")) ||
           (name.starts_with("causal") && with.starts_with("causal") && name != with);
  };
  return forbids(one, other) || forbids(other, one);
}

AttentionCase as_row_invariant(AttentionCase attention) {
  attention.options.row_invariant = true;
  attention.options.log_length = 0;
  attention.tree.reset();
  attention.text.reset();  // which says where in its sequence a row is
  return attention;
}

}  // namespace strobe::test
