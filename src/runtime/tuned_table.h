// SPDX-License-Identifier: Apache-2.0
// A file of choices that were measured on one device: of each call, by its name, what to choose. What calls and choices
// are is for others to know.
//
// What it promises: a table is read whole or not at all. One that is damaged, of another device or of another library
// is none, with a reason for people.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device.h"
#include "strobe/export.h"

namespace strobe::runtime {

struct TunedEntry {
  std::string choice;
  double gain = 1.0;  // how many times as fast as what it is instead of

  bool operator==(const TunedEntry&) const = default;
};

struct TunedTable {
  std::string device;   // tuned_device()
  std::string library;  // tuned_library()
  std::map<std::string, TunedEntry, std::less<>> entries;
};

/// A device as tables name it: "NVIDIA H100 80GB HBM3, compute capability 9.0, 132 multiprocessors".
STROBE_API std::string tuned_device(const CudaDevice& device);

/// This library: its version, and a hash of the kernels' sources.
STROBE_API std::string tuned_library();

/// $STROBE_TUNED, or a file of the device's in the folder `tuned` beside the disk cache's; empty without a home.
STROBE_API std::string tuned_path(const CudaDevice& device);

/// The file's text: a line for the format, the library and the device each, a line "call | choice | gain" for each
/// entry in the order of their names, and the SHA-256 of all lines before.
STROBE_API std::string tuned_text(const TunedTable& table);

/// A table, or why there is none.
struct TunedRead {
  TunedTable table;
  std::string reason;  // empty: there is one
};

/// Of such a text, and of no other.
TunedRead parse_tuned(std::string_view text);

/// Of a file.
STROBE_API TunedRead read_tuned(const std::string& path);

/// Writes the file, whole or not at all, and the folder that it is in. Why not, or empty.
STROBE_API std::string write_tuned(const std::string& path, const TunedTable& table);

/// The table for a device, read from tuned_path() by the first call for it; every later call gives the same.
struct TunedChoices {
  TunedTable table;  // no entries where there is none
  std::string note;  // what is used, or why nothing is: for people
};
const TunedChoices& tuned_choices(const CudaDevice& device);

}  // namespace strobe::runtime
