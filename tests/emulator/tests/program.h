// SPDX-License-Identifier: Apache-2.0
// Small programs in PTX: each thread reads a word and writes one.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "machine/grid.h"
#include "ptx/decoder.h"

namespace strobe::emulator::test {

using Words = std::vector<std::uint32_t>;

inline std::uint32_t word(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float real(std::uint32_t x) { return std::bit_cast<float>(x); }

/// Memory that kernels may touch while it lives.
class DeviceWords {
 public:
  explicit DeviceWords(const Words& words) : count_(words.size()) {
    address_ = GlobalMemory::instance().allocate(4 * count_);
    std::memcpy(reinterpret_cast<void*>(address_), words.data(), 4 * count_);
  }
  ~DeviceWords() { GlobalMemory::instance().free(address_); }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;

  std::uint64_t address() const { return address_; }
  Words words() const {
    Words read(count_);
    std::memcpy(read.data(), reinterpret_cast<const void*>(address_), 4 * count_);
    return read;
  }

 private:
  std::size_t count_;
  std::uint64_t address_ = 0;
};

/// A kernel whose body finds the thread in %r0, its word of the input in %r1 and the addresses of all input and output
/// in %rd0 and %rd1, and leaves the thread's result in %r2. `declarations`: of shared memory, for one.
class PtxProgram {
 public:
  explicit PtxProgram(const std::string& body, const std::string& declarations = "") {
    const std::string text = ".version 8.8\n.target sm_90a\n.address_size 64\n" + declarations +
                             "\n.visible .entry kernel(.param .u64 input, .param .u64 output, "
                             ".param .align 64 .b8 maps[256])\n.maxntid 1024\n{\n"
                             ".reg .pred %p<20>;\n.reg .b16 %rs<20>;\n.reg .b32 %r<200>;\n.reg .f32 %f<300>;\n"
                             ".reg .b64 %rd<40>;\n.reg .f64 %fd<10>;\n"
                             "ld.param.u64 %rd0, [input];\nld.param.u64 %rd1, [output];\nmov.u32 %r0, %tid.x;\n"
                             "mov.u32 %r198, %ctaid.x;\nmov.u32 %r199, %ntid.x;\n"
                             "mad.lo.s32 %r197, %r198, %r199, %r0;\nmul.wide.u32 %rd38, %r197, 4;\n"
                             "add.u64 %rd39, %rd0, %rd38;\nld.global.u32 %r1, [%rd39];\n" +
                             body + "\nadd.u64 %rd39, %rd1, %rd38;\nst.global.u32 [%rd39], %r2;\nret;\n}\n";
    module_ = parse_ptx(text);
    program_ = Decoder(*module_, *module_->kernels.at(0)).decode();
  }

  /// Results of all threads of `blocks` blocks. Throws Fault.
  Words run(const Words& input, unsigned blocks = 1, unsigned cluster = 1) {
    const DeviceWords in(input);
    const DeviceWords out(Words(input.size(), 0xdeadbeef));
    std::vector<std::byte> params(static_cast<std::size_t>(program_->param_bytes) + 64);
    const std::uint64_t addresses[] = {in.address(), out.address()};
    std::memcpy(params.data(), addresses, sizeof(addresses));
    std::memcpy(params.data() + 64, maps.data(), maps.size());
    const Shape shape{.grid = {blocks, 1, 1},
                      .block = {static_cast<unsigned>(input.size()) / blocks, 1, 1},
                      .cluster = {cluster, 1, 1},
                      .dynamic_shared = dynamic_shared};
    Grid grid(*program_, shape, params);
    grid.run();
    return out.words();
  }
  /// Of one warp.
  Words run_warp(const Words& input) { return run(input); }

  std::size_t dynamic_shared = 0;
  std::vector<std::byte> maps = std::vector<std::byte>(256);

 private:
  std::unique_ptr<SourceModule> module_;
  std::unique_ptr<Program> program_;
};

/// 0, 1, 2, ...
inline Words counted(std::size_t count) {
  Words words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::uint32_t>(i);
  return words;
}

/// The result of one thread whose word is `x`.
inline std::uint32_t result_of(const std::string& body, std::uint32_t x = 0) { return PtxProgram(body).run({x}).at(0); }

inline std::string fault_of(PtxProgram& program, const Words& input) {
  try {
    program.run(input);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

}  // namespace strobe::emulator::test
