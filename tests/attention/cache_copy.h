// SPDX-License-Identifier: Apache-2.0
// A call's keys and values as the caches that servers keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.h"
#include "strobe/attention.h"

namespace strobe::test {

enum class CacheKind : std::uint8_t { pages, entries };

/// A copy of a forward's keys and values as pages in any order, with heads and rows of a page in either order, or as
/// entries in any order among others; both with left padding half of the time. What belongs to no key holds NaN, and
/// entries of the page table beyond the keys numbers of no page. The copy has outputs of its own.
class CacheCopy {
 public:
  /// `page_size`: of pages, or 0 for any. A bias and a block mask ask for one that divides the keys.
  CacheCopy(const ForwardArguments& from, CacheKind kind, Random& random, std::int64_t page_size = 0);
  CacheCopy(const CacheCopy&) = delete;
  CacheCopy& operator=(const CacheCopy&) = delete;

  ForwardArguments arguments() const { return arguments_; }

  /// Runs the call and expects the bits of `from`'s outputs, which it has written before; where its plan sums over keys
  /// in another order than from's, results within the reference's bound instead, and returns false.
  bool expect_the_same_results(const AttentionOptions& options, const Execution& execution) const;

  /// Whether the outputs, which the call has written, are those of `from`, bit by bit.
  bool has_the_same_bits() const;

 private:
  /// Where row `row` of sequence b lies: page or entry, and the row within it.
  struct Place {
    std::int64_t entry;
    std::int64_t row;
  };
  Place place(std::int64_t b, std::int64_t row) const;

  void choose_places(CacheKind kind, Random& random, std::int64_t page_size);
  ConstTensorView copy(const ConstTensorView& rows, bool packed, bool heads_first, std::vector<std::byte>& bytes) const;
  TensorView output_like(const TensorView& from, std::vector<std::byte>& bytes) const;

  ForwardArguments from_, arguments_;
  std::int64_t batch_ = 0;
  std::int64_t rows_ = 0;   // that a sequence may have, padding and all
  std::int64_t size_ = 0;   // rows of a page, or of an entry
  std::int64_t count_ = 0;  // pages or entries
  std::int64_t max_pages_ = 0;
  std::vector<std::int64_t> first_key_, length_;
  std::vector<std::int32_t> leftpad_, used_, table_, entry_of_;
  std::vector<std::byte> k_, v_, o_, lse_, max_logits_;
};

}  // namespace strobe::test
