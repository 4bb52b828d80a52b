// SPDX-License-Identifier: Apache-2.0
// Products of matrices whose elements are small integers, so that every order of summing gives the same.
#include <array>
#include <cmath>

#include "instructions/numbers.h"
#include "tests/program.h"

namespace strobe::emulator::test {
namespace {

constexpr std::size_t kWarp = 32;

int a_of(int row, int k) { return (row * 3 + k * 5) % 11 - 5; }
int b_of(int k, int column) { return (k * 7 + column * 2) % 9 - 4; }
int product(int row, int column, int k) {
  int sum = 0;
  for (int i = 0; i < k; ++i) sum += a_of(row, i) * b_of(i, column);
  return sum;
}
std::uint32_t pair(int low, int high) {
  return to_bfloat16(static_cast<float>(low)) | static_cast<std::uint32_t>(to_bfloat16(static_cast<float>(high))) << 16;
}

/// The kernel loads A and B of each lane from its parameters: words [lane][6] behind the pointer.
const std::string kLoad = R"(
    ld.param.u64 %rd3, [maps];
    mul.wide.u32 %rd4, %r0, 24;
    add.u64 %rd4, %rd3, %rd4;
    ld.global.u32 %r10, [%rd4];
    ld.global.u32 %r11, [%rd4+4];
    ld.global.u32 %r12, [%rd4+8];
    ld.global.u32 %r13, [%rd4+12];
    ld.global.u32 %r14, [%rd4+16];
    ld.global.u32 %r15, [%rd4+20];
    mov.f32 %f1, 0f41200000;
)";
const std::string kChoose = R"(
    setp.eq.u32 %p1, %r1, 0;
    setp.eq.u32 %p2, %r1, 1;
    setp.eq.u32 %p3, %r1, 2;
    mov.b32 %r2, %f5;
    @%p1 mov.b32 %r2, %f2;
    @%p2 mov.b32 %r2, %f3;
    @%p3 mov.b32 %r2, %f4;
)";

void expect_product(PtxProgram& program, const Words& operands, int k) {
  const DeviceWords memory(operands);
  const std::uint64_t address = memory.address();
  std::memcpy(program.maps.data(), &address, sizeof(address));
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Words result = program.run_warp(Words(kWarp, i));
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4 + (i >= 2 ? 8 : 0);
      const int column = 2 * (lane % 4) + static_cast<int>(i % 2);
      EXPECT_EQ(real(result[static_cast<std::size_t>(lane)]), 10.0F + static_cast<float>(product(row, column, k)))
          << row << ' ' << column;
    }
  }
}

TEST(EmulatedMatrices, ProductOfBfloat16) {
  Words operands;
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4;
    const int two = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const int row = group + 8 * (i % 2);
      const int k = two + 8 * (i / 2);
      operands.push_back(pair(a_of(row, k), a_of(row, k + 1)));
    }
    for (int i = 0; i < 2; ++i) operands.push_back(pair(b_of(two + 8 * i, group), b_of(two + 8 * i + 1, group)));
  }
  PtxProgram program(kLoad +
                     "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f2, %f3, %f4, %f5}, "
                     "{%r10, %r11, %r12, %r13}, {%r14, %r15}, {%f1, %f1, %f1, %f1};" +
                     kChoose);
  expect_product(program, operands, 16);
}

TEST(EmulatedMatrices, ProductOfTf32) {
  Words operands;
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4;
    const int own = lane % 4;
    for (int i = 0; i < 4; ++i) {
      // The lowest bits are not looked at.
      operands.push_back(word(static_cast<float>(a_of(group + 8 * (i % 2), own + 4 * (i / 2)))) | 0xfff);
    }
    for (int i = 0; i < 2; ++i) operands.push_back(word(static_cast<float>(b_of(own + 4 * i, group))));
  }
  PtxProgram program(kLoad +
                     "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f2, %f3, %f4, %f5}, "
                     "{%r10, %r11, %r12, %r13}, {%r14, %r15}, {%f1, %f1, %f1, %f1};" +
                     kChoose);
  expect_product(program, operands, 8);
}

// Four matrices of 64 elements 0, 1, ...: each lane stores a row of 16 bytes by itself and loads fragments.
constexpr const char* kStoreRows = R"(
    mov.u32 %r20, tile;
    mad.lo.u32 %r20, %r0, 16, %r20;
    shl.b32 %r21, %r0, 3;
    mad.lo.u32 %r23, %r21, 0x10001, 0x10000;
    add.u32 %r24, %r23, 0x20002;
    add.u32 %r25, %r23, 0x40004;
    add.u32 %r26, %r23, 0x60006;
    st.shared.v4.u32 [%r20], {%r23, %r24, %r25, %r26};
    bar.sync 0;
)";

TEST(EmulatedMatrices, LoadAndTranspose) {
  const std::string tile = ".shared .align 16 .b8 tile[512];\n";
  PtxProgram plain(std::string(kStoreRows) + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r2}, [%r20];",
                   tile);
  PtxProgram transposed(
      std::string(kStoreRows) + "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r3, %r2, %r5, %r6}, [%r20];", tile);
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t row = lane / 4;
    const std::uint32_t column = 2 * (lane % 4);
    const std::uint32_t first = 64 * 3 + 8 * row + column;
    EXPECT_EQ(plain.run_warp(counted(kWarp))[lane], first | (first + 1) << 16);
    const std::uint32_t upper = 64 + 8 * column + row;
    EXPECT_EQ(transposed.run_warp(counted(kWarp))[lane], upper | (upper + 8) << 16);
  }
}

TEST(EmulatedMatrices, StoreWhatWasLoaded) {
  const std::string tile = ".shared .align 16 .b8 tile[1024];\n";
  PtxProgram program(std::string(kStoreRows) + R"(
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r20];
    stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r20+512], {%r3, %r4, %r5, %r6};
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r2, [%r20+512];
  )",
                     tile);
  const Words result = program.run_warp(counted(kWarp));
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t first = lane / 8 * 64 + lane % 8;  // column of the matrix as a row
    EXPECT_EQ(result[lane], first | (first + 8) << 16);
  }
}

}  // namespace
}  // namespace strobe::emulator::test
