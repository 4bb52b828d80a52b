// SPDX-License-Identifier: Apache-2.0
// The file that a tune writes, and what is in it before.
#pragma once

#include <string>

#include "runtime/tuned_table.h"
#include "strobe/status.h"

namespace strobe::program {

/// The table at `path`, an empty one where there is no file, with the folder made that it is in. invalid_argument where
/// the file cannot be written or is no table: what somebody else wrote stays.
Result<runtime::TunedTable> table_before(const std::string& path);

/// What a tune on `device` by `library` writes to, and what to say about it.
struct TableToWrite {
  runtime::TunedTable table;  // with the entries that stay
  std::string note;           // empty: there is nothing to say
};

/// invalid_argument where `before` is of another device, whose entries would be lost. The entries of another version
/// are of no use.
Result<TableToWrite> table_to_write(const std::string& path, const runtime::TunedTable& before,
                                    const std::string& device, const std::string& library);

}  // namespace strobe::program
