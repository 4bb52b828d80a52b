// SPDX-License-Identifier: Apache-2.0
// NVIDIA's run-time compiler: kernel text in, machine code out, without a GPU, a CUDA toolkit or a file on disk.
#pragma once

#include <limits>
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
  static constexpr int kAnyMinor = std::numeric_limits<int>::max();

  int major = 0;
  int minor = 0;
  auto operator<=>(const NvrtcVersion&) const = default;
};

/// "12.9"
std::string to_string(NvrtcVersion version);

/// What machine code is for.
struct CubinTarget {
  NvrtcVersion newest{NvrtcVersion::kAnyMinor, NvrtcVersion::kAnyMinor};  // of the NVRTCs whose code the driver loads
  std::string architecture;                                               // "sm_90a"; empty: any
};

/// One opened NVRTC. Threads may use it at once.
class Nvrtc {
 public:
  /// Opens a file, or a bare name on the loader's path. unsupported when it is not there or older than 12.4.
  static Result<std::unique_ptr<const Nvrtc>> open(const std::string& path);
  ~Nvrtc();

  NvrtcVersion version() const { return version_; }
  const std::string& path() const { return path_; }

  /// What it compiles for, as 90 for sm_90 and sm_90a.
  std::vector<int> architectures() const;

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
/// $PATH, the user's and the system's packages), where those for CUDA 13 and for CUDA 12 put it.
std::vector<std::string> nvrtc_candidates();

/// The NVRTC that compiles for the target, of those of this machine (nvrtc_choice.h has the rule). They are looked for
/// once per process. unsupported, with the way to get one, where there is none.
Result<const Nvrtc*> nvrtc(const CubinTarget& target = {});

/// For people: the NVRTC that nvrtc() gives and why, and why not each of the others; a line each.
std::vector<std::string> describe_nvrtc(const CubinTarget& target);

}  // namespace strobe::runtime
