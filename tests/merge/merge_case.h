// SPDX-License-Identifier: Apache-2.0
// A merge of random partial results and what it must give, in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention/guarded_tensor.h"
#include "strobe/merge.h"

namespace strobe::test {

struct MergeShape {
  std::int64_t batch = 2;  // 0: packed
  std::int64_t rows = 5;
  std::int64_t heads = 3;
  std::int64_t columns = 64;
};

class MergeCase {
 public:
  /// A fifth of the LSEs are -inf, with NaN in O. `special`: some are NaN or +inf.
  MergeCase(const MergeShape& shape, std::size_t parts, DType source, DType destination, const Placement& placement,
            std::uint64_t seed, bool special = false)
      : shape_(shape), destination_(destination) {
    Random random(seed);
    const bool packed = shape.batch == 0;
    const std::vector<std::int64_t> o_shape = packed ? std::vector{shape.rows, shape.heads, shape.columns}
                                                     : std::vector{shape.batch, shape.rows, shape.heads, shape.columns};
    const std::vector<std::int64_t> lse_shape =
        packed ? std::vector{shape.heads, shape.rows} : std::vector{shape.batch, shape.heads, shape.rows};
    for (std::size_t i = 0; i < parts; ++i) {
      parts_o.emplace_back(source, o_shape, placement, random);
      parts_lse.emplace_back(DType::float32, lse_shape, placement, random);
      fill(parts_o.back(), parts_lse.back(), random, special);
    }
    o = GuardedTensor(destination, o_shape, placement, random);
    lse = GuardedTensor(DType::float32, lse_shape, placement, random);
  }

  /// `place` gives a tensor's view on the device that the merge runs on; the parts are kept here.
  template <class Place>
  MergeArguments arguments(const Place& place) {
    parts_.clear();
    for (std::size_t i = 0; i < parts_o.size(); ++i) parts_.push_back({place(parts_o[i]), place(parts_lse[i])});
    return {parts_, place(o), place(lse)};
  }

  /// o and lse as the merge left them, element by element. The bound: one rounding to the destination, and some of
  /// float32 for each part.
  void expect_merged() const {
    const std::int64_t batch = std::max<std::int64_t>(shape_.batch, 1);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t row = 0; row < shape_.rows; ++row) {
        for (std::int64_t head = 0; head < shape_.heads; ++head) expect_row(b, row, head);
      }
    }
    EXPECT_TRUE(o.guards_intact());
    EXPECT_TRUE(lse.guards_intact());
  }

  std::vector<GuardedTensor> parts_o, parts_lse;
  GuardedTensor o, lse;

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  std::int64_t o_index(std::int64_t b, std::int64_t row, std::int64_t head) const {
    return ((b * shape_.rows + row) * shape_.heads + head) * shape_.columns;
  }
  std::int64_t lse_index(std::int64_t b, std::int64_t row, std::int64_t head) const {
    return (b * shape_.heads + head) * shape_.rows + row;
  }

  void fill(GuardedTensor& part_o, GuardedTensor& part_lse, Random& random, bool special) const {
    const std::int64_t batch = std::max<std::int64_t>(shape_.batch, 1);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t row = 0; row < shape_.rows; ++row) {
        for (std::int64_t head = 0; head < shape_.heads; ++head) {
          // Rows 0 see nothing in any part; the others' LSEs are near one another or far apart.
          const bool empty = row == 0 || random.chance(0.2);
          double value = random.normal() * random.one_of({1.0, 1.0, 40.0});
          if (special && random.chance(0.1)) value = random.chance(0.5) ? kInfinity : std::nan("");
          part_lse.set(lse_index(b, row, head), empty ? -kInfinity : value);
          for (std::int64_t c = 0; c < shape_.columns; ++c) {
            part_o.set(o_index(b, row, head) + c, empty ? std::nan("") : random.normal());
          }
        }
      }
    }
  }

  void expect_row(std::int64_t b, std::int64_t row, std::int64_t head) const {
    double largest = -kInfinity;
    bool defined = true;
    for (const GuardedTensor& part : parts_lse) {
      const double x = part.get(lse_index(b, row, head));
      defined = defined && x < kInfinity;
      largest = std::max(largest, x);
    }
    std::vector<double> weights;
    double sum = 0.0;
    for (const GuardedTensor& part : parts_lse) {
      const double x = part.get(lse_index(b, row, head));
      weights.push_back(x == -kInfinity ? 0.0 : std::exp(x - largest));
      sum += weights.back();
    }
    const double got_lse = lse.get(lse_index(b, row, head));
    const std::string where =
        "batch " + std::to_string(b) + ", row " + std::to_string(row) + ", head " + std::to_string(head);
    const double small = 0x1p-22 * static_cast<double>(8 + parts_o.size());
    if (!defined) {
      EXPECT_TRUE(std::isnan(got_lse)) << where;
    } else if (sum == 0.0) {
      EXPECT_EQ(got_lse, -kInfinity) << where;
    } else {
      EXPECT_NEAR(got_lse, largest + std::log(sum), small * (1.0 + std::abs(largest))) << where;
    }
    const double unit = destination_ == DType::float32 ? 0x1p-24 : destination_ == DType::float16 ? 0x1p-11 : 0x1p-8;
    for (std::int64_t c = 0; c < shape_.columns; ++c) {
      const std::int64_t index = o_index(b, row, head) + c;
      double wanted = 0.0;
      double magnitude = 0.0;
      for (std::size_t i = 0; sum > 0.0 && i < parts_o.size(); ++i) {
        if (weights[i] == 0.0) continue;
        wanted += weights[i] / sum * parts_o[i].get(index);
        magnitude += weights[i] / sum * std::abs(parts_o[i].get(index));
      }
      if (!defined) {
        EXPECT_TRUE(std::isnan(o.get(index))) << where << ", column " << c;
      } else {
        // 2^-24: half the smallest float16.
        EXPECT_NEAR(o.get(index), wanted, unit * std::abs(wanted) + small * magnitude + 0x1p-24)
            << where << ", column " << c;
      }
    }
  }

  MergeShape shape_;
  DType destination_;
  std::vector<PartialResult> parts_;
};

/// Cases around the edges of vectors, warps and variants. visit(MergeCase&).
template <class Visit>
void for_each_merge_case(std::int64_t alignment, const Visit& visit) {
  std::uint64_t seed = 1;
  for (const std::size_t parts : {1, 2, 7, 8, 9, 33, 256}) {
    for (const MergeShape& shape : {MergeShape{2, 5, 3, 64}, MergeShape{0, 37, 2, 128}, MergeShape{1, 3, 1, 200},
                                    MergeShape{3, 1, 5, 512}, MergeShape{1, 9, 4, 8}}) {
      for (const auto& [source, destination] :
           {std::pair{DType::float32, DType::bfloat16}, std::pair{DType::bfloat16, DType::bfloat16},
            std::pair{DType::float16, DType::float32}, std::pair{DType::float32, DType::float16}}) {
        const Placement placement{.layout = seed % 2 == 0 ? Layout::scrambled : Layout::contiguous,
                                  .guard = Guard::bytes,
                                  .alignment = seed % 3 == 0 ? 1 : alignment};
        MergeCase one(shape, parts, source, destination, placement, seed, seed % 5 == 0);
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(parts) + " parts");
        visit(one);
        if (testing::Test::HasFailure()) return;
        ++seed;
      }
    }
  }
}

}  // namespace strobe::test
