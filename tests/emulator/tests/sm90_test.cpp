// SPDX-License-Identifier: Apache-2.0
// Boxes of tensors, products of a warpgroup, and clusters.
#include "driver/tensor_map.h"
#include "instructions/numbers.h"
#include "instructions/swizzle.h"
#include "tests/program.h"

namespace strobe::emulator::test {
namespace {

const std::string kTile = ".shared .align 1024 .b8 tile[16384];\n.shared .align 8 .b64 full;\n";

/// A matrix of `rows` x 64 bfloat16 as a tensor of two axes, in boxes of 64 columns that are swizzled.
TensorMap matrix_map(std::uint64_t address, std::uint64_t rows, std::uint16_t box_rows) {
  TensorMap map;
  map.magic = kTensorMapMagic;
  map.rank = 2;
  map.swizzle = 3;
  map.element_bytes = 2;
  map.address = address;
  map.strides[0] = 128;
  map.extents[0] = 64;
  map.extents[1] = rows;
  map.box[0] = 64;
  map.box[1] = box_rows;
  return map;
}

void put_map(PtxProgram& program, const TensorMap& map, std::size_t offset) {
  std::memcpy(program.maps.data() + offset, &map, sizeof(map));
}

const std::string kSetUp = R"(
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra ready;
    mbarrier.init.shared.b64 [full], 1;
    mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], 8192;
    mov.u64 %rd2, maps;
    cvta.param.u64 %rd3, %rd2;
    mov.u32 %r3, tile;
    mov.u32 %r4, full;
    mov.u32 %r5, -2;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd3, {0, %r5}], [%r4];
  ready:
    bar.sync 0;
  wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [full], 0;
    @!%p2 bra wait;
)";

TEST(EmulatedBoxes, AreSwizzledAndFilledWithZeros) {
  Words matrix(32 * 62);
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<std::uint32_t>(i + 1);
  const DeviceWords memory(matrix);
  PtxProgram program(kSetUp + "mov.u32 %r3, tile; add.u32 %r3, %r3, %r1; ld.shared.u32 %r2, [%r3];", kTile);
  put_map(program, matrix_map(memory.address(), 62, 64), 0);
  Words input(128);
  for (std::uint32_t i = 0; i < 128; ++i) input[i] = 64 * i;  // bytes of the tile
  const Words result = program.run(input);
  for (std::uint32_t i = 0; i < 128; ++i) {
    const auto logical = static_cast<std::uint32_t>(swizzled(64 * i, 3));
    const std::int64_t row = static_cast<std::int64_t>(logical / 128) - 2;
    const std::uint32_t expected = row < 0 ? 0 : static_cast<std::uint32_t>(row) * 32 + logical % 128 / 4 + 1;
    EXPECT_EQ(result[i], expected) << i;
  }
}

TEST(EmulatedBoxes, AreStoredWithinTheTensor) {
  const DeviceWords source(Words(32 * 64, 0x3f803f80));
  const DeviceWords target(Words(32 * 64, 0));
  PtxProgram program(kSetUp + R"(
    mov.u32 %r2, 0;
    @%p1 bra end;
    mov.u64 %rd2, maps;
    cvta.param.u64 %rd3, %rd2;
    add.u64 %rd3, %rd3, 128;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd3, {0, 30}], [%r3];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
  end:
  )",
                     kTile);
  put_map(program, matrix_map(source.address(), 64, 64), 0);
  put_map(program, matrix_map(target.address(), 34, 64), 128);
  program.run(Words(128, 0));
  const Words written = target.words();
  EXPECT_EQ(written[32 * 29], 0U);
  EXPECT_EQ(written[32 * 30], 0U);  // of the two rows that were outside of the source
  EXPECT_EQ(written[32 * 32], 0x3f803f80U);
  EXPECT_EQ(written[32 * 33 + 31], 0x3f803f80U);
  EXPECT_EQ(written[32 * 34], 0U);
}

int element(int row, int column) { return (row * 5 + column * 3) % 13 - 6; }

/// The same matrix of 64 x 64 as both operands, whose first 16 columns are multiplied.
void expect_warpgroup_product(bool transposed) {
  Words matrix(32 * 64);
  for (int i = 0; i < 32 * 64; ++i) {
    const int row = i / 32;
    const int column = 2 * (i % 32);
    matrix[static_cast<std::size_t>(i)] =
        to_bfloat16(static_cast<float>(element(row, column))) |
        static_cast<std::uint32_t>(to_bfloat16(static_cast<float>(element(row, column + 1)))) << 16;
  }
  const DeviceWords memory(matrix);
  std::string sums;
  std::string choice = "mov.b32 %r2, %f100;\n";
  for (int i = 0; i < 32; ++i) {
    sums += (i == 0 ? "%f" : ", %f") + std::to_string(100 + i);
    choice += "setp.eq.u32 %p3, %r1, " + std::to_string(i) + "; @%p3 mov.b32 %r2, %f" + std::to_string(100 + i) + ";\n";
  }
  const std::string immediates = transposed ? "1, 1, 1, 1" : "1, 1, 0, 0";
  std::string set_up = kSetUp;
  set_up.replace(set_up.find("-2"), 2, "0 ");
  PtxProgram program(set_up + R"(
    mov.u32 %r3, tile;
    shr.u32 %r4, %r3, 4;
    cvt.u64.u32 %rd5, %r4;
    or.b64 %rd5, %rd5, 0x4000004000010000;
    setp.eq.u32 %p4, 0, 1;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {)" +
                         sums + "}, %rd5, %rd5, %p4, " + immediates + ";\n" + R"(
    setp.eq.u32 %p4, 0, 0;
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {)" +
                         sums + "}, %rd5, %rd5, %p4, " + immediates + ";\n" + R"(
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
  )" + choice,
                     kTile);
  put_map(program, matrix_map(memory.address(), 64, 64), 0);
  for (const std::uint32_t i : {0U, 1U, 2U, 13U, 31U}) {
    const Words result = program.run(Words(128, i));
    for (int thread = 0; thread < 128; ++thread) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + (i / 2 % 2 != 0 ? 8 : 0);
      const int column = static_cast<int>(i) / 4 * 8 + 2 * (thread % 4) + static_cast<int>(i % 2);
      int expected = 0;
      for (int k = 0; k < 16; ++k) {
        expected += 2 * (transposed ? element(k, row) * element(k, column) : element(row, k) * element(column, k));
      }
      EXPECT_EQ(real(result[static_cast<std::size_t>(thread)]), static_cast<float>(expected)) << row << ' ' << column;
    }
  }
}

TEST(EmulatedWarpgroup, ProductOfRows) { expect_warpgroup_product(false); }
TEST(EmulatedWarpgroup, ProductOfColumns) { expect_warpgroup_product(true); }

TEST(EmulatedCluster, BlocksReachOneAnother) {
  PtxProgram program(R"(
    mov.u32 %r3, tile;
    mov.u32 %r4, %cluster_ctarank;
    xor.b32 %r5, %r4, 1;
    mapa.shared::cluster.u32 %r6, %r3, %r5;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    shl.b32 %r7, %r0, 2;
    add.u32 %r6, %r6, %r7;
    st.shared::cluster.u32 [%r6], %r1;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    add.u32 %r3, %r3, %r7;
    ld.shared.u32 %r2, [%r3];
  )",
                     kTile);
  const Words result = program.run(counted(256), 4, 2);
  for (std::uint32_t i = 0; i < 256; ++i) EXPECT_EQ(result[i], i ^ 64U);
}

TEST(EmulatedCluster, ArrivalsAtAnotherBlock) {
  PtxProgram program(R"(
    mov.u32 %r3, full;
    setp.ne.u32 %p1, %r0, 0;
    @!%p1 mbarrier.init.shared.b64 [full], 64;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r6, %r3, 0;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
    mov.u32 %r2, %cluster_ctarank;
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra end;
  wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [full], 0;
    @!%p3 bra wait;
  end:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
  )",
                     kTile);
  EXPECT_EQ(program.run(counted(64), 2, 2)[40], 1U);
}

TEST(EmulatedCluster, StoresCompleteBytesOfAnotherBlocksBarrier) {
  PtxProgram program(R"(
    mov.u32 %r3, tile;
    mov.u32 %r4, full;
    setp.ne.u32 %p1, %r0, 0;
    @!%p1 mbarrier.init.shared.b64 [full], 1;
    @!%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], 1024;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mov.u32 %r5, %cluster_ctarank;
    xor.b32 %r5, %r5, 1;
    mapa.shared::cluster.u32 %r6, %r3, %r5;
    mapa.shared::cluster.u32 %r4, %r4, %r5;
    shl.b32 %r7, %r0, 4;
    add.u32 %r6, %r6, %r7;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r6], {%r1, %r1, %r1, %r0}, [%r4];
  wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [full], 0;
    @!%p3 bra wait;
    add.u32 %r3, %r3, %r7;
    ld.shared.u32 %r2, [%r3 + 8];
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
  )",
                     kTile);
  const Words result = program.run(counted(256), 4, 2);
  for (std::uint32_t i = 0; i < 256; ++i) EXPECT_EQ(result[i], i ^ 64U);
}

}  // namespace
}  // namespace strobe::emulator::test
