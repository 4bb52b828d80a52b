// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy: one array in one file.
// Source: "NEP 1 - A simple file format for NumPy arrays", format versions 1.0, 2.0 and 3.0.
#pragma once

#include <filesystem>

#include "io/atomic_file.h"
#include "io/host_tensor.h"
#include "strobe/status.h"

namespace strobe::io {

/// Reads `path`, a file, a pipe or, as "-", standard input: a C-ordered little-endian array of rank up to
/// kMaxRank; one of rank 0 has the shape [1]. dtypes: all of DType, bfloat16 as ml_dtypes saves it (descr '<V2' or
/// '|V2') or by name
/// ('bfloat16'). invalid_argument, with a message that names the file, when it cannot be read, is not a whole .npy or
/// holds something else; out_of_memory when it does not fit.
Result<HostTensor> read_npy(const std::filesystem::path& path);

/// Writes the same as below into a file that the caller commits.
Status write_npy(AtomicFile& file, const HostTensor& tensor);

/// Writes format version 1.0, whole or not at all; bfloat16 as '<V2', which numpy.load(...).view(ml_dtypes.bfloat16)
/// reads back. Failures are those of AtomicFile, and out_of_memory.
Status write_npy(const std::filesystem::path& path, const HostTensor& tensor);

}  // namespace strobe::io
