// SPDX-License-Identifier: Apache-2.0
#include "expression/position_mask.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "expression/ranges.h"

namespace strobe::expression {
namespace {

/// Halves areas of blocks until each is hidden, shown or a single block.
class Counter {
 public:
  Counter(const MaskRange& mask, std::int64_t q_len, std::int64_t k_len, std::int64_t block)
      : mask_(mask), q_len_(q_len), k_len_(k_len), block_(block) {}

  /// Of blocks of queries [q, q_end) and keys [k, k_end). False once there were too many looks.
  bool count(std::int64_t q, std::int64_t q_end, std::int64_t k, std::int64_t k_end) {
    constexpr int kMostLooks = 1 << 16;
    const std::int64_t blocks = (q_end - q) * (k_end - k);
    if (blocks == 0) return true;
    if (++looks_ > kMostLooks) return false;
    const Range range = mask_(rows(q, q_end, q_len_), rows(k, k_end, k_len_));
    if (range.high == 0) {
      counts.empty += blocks;
    } else if (range.low != 0) {
      counts.full += blocks;
    } else if (blocks == 1) {
      ++counts.partial;
    } else if (q_end - q >= k_end - k) {
      const std::int64_t middle = q + (q_end - q) / 2;
      return count(q, middle, k, k_end) && count(middle, q_end, k, k_end);
    } else {
      const std::int64_t middle = k + (k_end - k) / 2;
      return count(q, q_end, k, middle) && count(q, q_end, middle, k_end);
    }
    return true;
  }

  BlockCounts counts;

 private:
  Range rows(std::int64_t first, std::int64_t end, std::int64_t length) const {
    return {first * block_, std::min(end * block_, length) - 1};
  }

  const MaskRange& mask_;
  std::int64_t q_len_, k_len_, block_;
  int looks_ = 0;
};

}  // namespace

MaskRange position_mask(const std::shared_ptr<const Formula>& formula, std::int64_t q_len, std::int64_t k_len) {
  if (!formula->mask_is_of_positions()) return {};
  const std::vector<Id> nodes = reachable(formula->graph(), std::array{formula->mask()});
  return [formula, nodes, q_len, k_len](const Range& queries, const Range& keys) {
    TileRanges tile;
    const auto set = [&](Variable variable, const Range& range) {
      tile.variables[static_cast<std::size_t>(variable)] = range;
    };
    set(Variable::q, queries);
    set(Variable::k, keys);
    set(Variable::q_len, just(q_len));
    set(Variable::k_len, just(k_len));
    return range_of(formula->graph(), nodes, formula->mask(), tile);
  };
}

std::optional<BlockCounts> count_blocks(const MaskRange& mask, std::int64_t q_len, std::int64_t k_len,
                                        std::int64_t block) {
  const auto most = any_integer().high;  // positions are integers of texts
  if (q_len > most || k_len > most) return std::nullopt;
  Counter counter(mask, q_len, k_len, block);
  if (!counter.count(0, (q_len + block - 1) / block, 0, (k_len + block - 1) / block)) return std::nullopt;
  return counter.counts;
}

}  // namespace strobe::expression
