#include "random_case.h"

#include <algorithm>

namespace strobe::test {
namespace {

constexpr std::int64_t kLongest = 300;  // beyond every block size, so that all remainders come up

// One in ten sequences has length 0 or 1.
std::int64_t random_length(Random& random) {
  return random.chance(0.1) ? random.integer(0, 1) : random.integer(0, random.chance(0.3) ? 40 : kLongest);
}

std::int64_t random_head_dim(Random& random) {
  if (random.chance(0.5)) return random.integer(1, 40);
  if (random.chance(0.6)) return random.one_of<std::int64_t>({32, 64, 80, 96, 128, 192, 256});
  return random.integer(1, 512);
}

// Packed sequences; rows before the first used one and after the last may belong to none.
SideLengths packed_side(std::int64_t batch, Random& random) {
  SideLengths side;
  std::int64_t longest = 0;
  side.cu_seqlens.push_back(0);
  for (std::int64_t index = 0; index < batch; ++index) {
    const std::int64_t length = random_length(random);
    longest = std::max(longest, length);
    side.cu_seqlens.push_back(side.cu_seqlens.back() + static_cast<std::int32_t>(length));
  }
  side.rows = side.cu_seqlens.back() + (random.chance(0.2) ? random.integer(1, 20) : 0);
  if (random.chance(0.5)) side.max_seqlen = longest;
  return side;
}

SideLengths random_side(std::int64_t batch, Random& random) {
  SideLengths side;
  if (random.chance(0.4)) {
    side = packed_side(batch, random);
  } else {
    side.rows = random_length(random);
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

AttentionOptions random_options(Random& random) {
  AttentionOptions options;
  options.causal = random.one_of({CausalMask::none, CausalMask::none, CausalMask::bottom_right, CausalMask::top_left});
  if (random.chance(0.3)) {
    options.window.left = random.chance(0.3) ? -1 : random.integer(0, 150);
    options.window.right = random.chance(0.3) ? -1 : random.integer(0, 150);
  }
  if (random.chance(0.3)) options.softcap = random.one_of({1.0F, 15.0F, 50.0F});
  if (random.chance(0.3)) options.scale = random.one_of({1.0F, 0.125F, 0.3F, -0.25F, 0.0F});
  return options;
}

// Multiply-adds of one product, S = Q K^T and its like.
double work(const AttentionCase& attention) {
  const double entries = attention.q.cu_seqlens.empty() || attention.k.cu_seqlens.empty()
                             ? static_cast<double>(std::max<std::int64_t>(1, attention.batch))
                             : 1.0;
  return entries * static_cast<double>(attention.heads_q) * static_cast<double>(attention.q.rows) *
         static_cast<double>(attention.k.rows) * static_cast<double>(attention.head_dim + attention.head_dim_v);
}

}  // namespace

AttentionCase random_case(std::uint64_t seed) {
  Random random(seed);
  const double most_work = random.chance(0.1) ? 8e7 : 2e7;  // keeps thousands of cases within minutes
  AttentionCase attention;
  do {
    attention = {};
    attention.dtype = random.one_of({DType::float32, DType::float16, DType::bfloat16});
    attention.batch = random.integer(random.chance(0.05) ? 0 : 1, 4);
    attention.heads_k = random.integer(1, 3);
    attention.heads_q = attention.heads_k * random.one_of<std::int64_t>({1, 1, 2, 3, 5});
    attention.head_dim = random_head_dim(random);
    attention.head_dim_v = random.chance(0.6) ? attention.head_dim : random_head_dim(random);
    attention.q = random_side(attention.batch, random);
    attention.k = random_side(attention.batch, random);
  } while (work(attention) > most_work);
  attention.options = random_options(random);
  attention.wants_lse = random.chance(0.9);
  attention.has_d_lse = random.chance(0.4);
  attention.values = random.one_of({Values::normal, Values::normal, Values::outliers, Values::small, Values::sharp});
  attention.layout = random.one_of({Layout::contiguous, Layout::padded, Layout::transposed, Layout::scrambled});
  attention.seed = seed;
  return attention;
}

}  // namespace strobe::test
