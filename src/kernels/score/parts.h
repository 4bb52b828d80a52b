// SPDX-License-Identifier: Apache-2.0
// What CTAs leave of a tile whose keys they shared, for auxiliary/combine.h. Plain C++ without std headers, shared by
// host and device.
#pragma once

namespace strobe {

/// Which parts a tile has: those of `count` CTAs in a row, from `first` on. The first one's part lies in slot
/// 2 first + 1, that of a later CTA w in slot 2 w. A count of 1: the tile is whole, and its result is where it belongs.
struct TileParts {
  int first, count;
};

/// A row's maximum, in powers of two, and its sum of exponentials relative to it. A sum of 0: the row saw no key, and
/// its P V means nothing.
struct PartStatistics {
  float max_log2, sum;
};

}  // namespace strobe
