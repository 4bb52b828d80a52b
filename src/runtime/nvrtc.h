// SPDX-License-Identifier: Apache-2.0
// NVIDIA's run-time compiler: kernel text in, machine code out, without a GPU, a CUDA toolkit or a file on disk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/archive.h"
#include "runtime/shared_object.h"
#include "strobe/status.h"

namespace strobe::runtime {

/// One translation unit and the kernel wanted from it.
struct CompileRequest {
  std::string name;                  // for messages
  std::string source;                // the text, usually one #include
  std::string expression;            // the kernel as C++ names it: "ns::kernel<ns::Config{.n = 3}>"
  std::vector<std::string> options;  // NVRTC's, as documented for nvrtcCompileProgram
};

struct CompileOutput {
  std::string cubin;
  std::string lowered_name;  // the kernel's symbol in the cubin
  std::string log;           // warnings and, with --ptxas-options=-v, registers and spills
};

struct NvrtcVersion {
  int major = 0;
  int minor = 0;
  auto operator<=>(const NvrtcVersion&) const = default;
};

/// One opened NVRTC. Threads may use it at once.
class Nvrtc {
 public:
  /// Opens a file, or a bare name on the loader's path. unsupported when it is not there or older than 13.0.
  static Result<std::unique_ptr<const Nvrtc>> open(const std::string& path);
  ~Nvrtc();

  NvrtcVersion version() const { return version_; }
  const std::string& path() const { return path_; }

  /// Compiles with `headers` as the only files that #include finds; their names are matched as written between the
  /// quotes or angle brackets. On failure the Status holds the first error, and `output.log` all of them.
  Status compile(const CompileRequest& request, const Archive& headers, CompileOutput& output) const;

 private:
  struct Functions;
  class Program;
  Nvrtc(std::string path, std::unique_ptr<const Functions> functions, NvrtcVersion version);

  std::string path_;
  std::unique_ptr<const Functions> functions_;
  NvrtcVersion version_;
};

/// Where to look for NVRTC, first choice first: $STROBE_NVRTC alone if it is set; otherwise the CUDA toolkits of
/// $CUDA_HOME, $CUDA_PATH and $CONDA_PREFIX, the loader's path, /usr/local/cuda, and the PyPI wheel nvidia-cuda-nvrtc
/// in the Python environments that this process shows (loaded libraries, $VIRTUAL_ENV, $CONDA_PREFIX, `python3` on
/// $PATH, the user's and the system's packages).
std::vector<std::string> nvrtc_candidates();

/// The first candidate that opens, looked for once per process; unsupported with the way to get one otherwise.
Result<const Nvrtc*> nvrtc();

}  // namespace strobe::runtime
