// SPDX-License-Identifier: Apache-2.0
// Loads, stores, atomics and copies, and what is said of addresses that are wrong.
#include "tests/program.h"

namespace strobe::emulator::test {
namespace {

const std::string kTile = ".shared .align 16 .b8 tile[256];\n.shared .align 8 .b64 bar;\n";

TEST(EmulatedMemory, VectorsAndNarrowTypes) {
  PtxProgram program(R"(
    mul.wide.u32 %rd2, %r0, 4;
    mov.u64 %rd3, tile;
    add.u64 %rd4, %rd3, %rd2;
    st.shared.u32 [%rd4], %r1;
    bar.sync 0;
    ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [tile+16];
    ld.shared.s8 %r7, [tile+1];
    ld.shared.u8 %rs1, [tile+1];
    cvt.u32.u16 %r8, %rs1;
    add.u32 %r2, %r3, %r6;
    add.u32 %r2, %r2, %r7;
    add.u32 %r2, %r2, %r8;
  )",
                     kTile);
  Words input = counted(32);
  input[0] = 0xff00;
  EXPECT_EQ(program.run(input)[9], 4U + 7U - 1U + 255U);
}

TEST(EmulatedMemory, GenericAddressesFindSharedAndLocalMemory) {
  PtxProgram program(R"(
    .local .align 8 .b8 own[64];
    mov.u64 %rd2, own;
    cvta.local.u64 %rd3, %rd2;
    st.u32 [%rd3+8], %r1;
    mov.u64 %rd4, tile;
    cvta.shared.u64 %rd5, %rd4;
    setp.eq.u32 %p1, %r0, 5;
    @%p1 st.u32 [%rd5+4], %r1;
    bar.sync 0;
    ld.shared.u32 %r3, [tile+4];
    ld.local.u32 %r4, [%rd2+8];
    isspacep.shared %p2, %rd5;
    selp.u32 %r5, 1000, 0, %p2;
    add.u32 %r2, %r3, %r4;
    add.u32 %r2, %r2, %r5;
  )",
                     kTile);
  EXPECT_EQ(program.run(counted(64))[33], 5U + 33U + 1000U);
}

TEST(EmulatedMemory, AtomicsOfAllThreads) {
  PtxProgram program(R"(
    setp.eq.u32 %p1, %r0, 0;
    @%p1 st.shared.u32 [tile], 0;
    bar.sync 0;
    red.shared.add.u32 [tile], %r1;
    atom.shared.max.s32 %r3, [tile+8], %r1;
    bar.sync 0;
    ld.shared.u32 %r2, [tile];
  )",
                     kTile);
  EXPECT_EQ(program.run(counted(64)), Words(64, 63 * 64 / 2));
}

TEST(EmulatedMemory, CopiesFillWithZeros) {
  PtxProgram program(R"(
    mov.u32 %r3, tile;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 cp.async.cg.shared.global [%r3+16], [%rd0], 16, 8;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.warp.sync 0xffffffff;
    ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [tile+16];
    add.u32 %r2, %r4, %r5;
    add.u32 %r2, %r2, %r6;
    add.u32 %r2, %r2, %r7;
  )",
                     kTile);
  EXPECT_EQ(program.run(Words(32, 3)), Words(32, 6));
}

std::string said_of(const std::string& body) {
  PtxProgram program(body, kTile);
  return fault_of(program, counted(32));
}

TEST(EmulatedMemory, AccessesOutsideAreReportedWithTheirLine) {
  const std::string shared = said_of("mov.u32 %r3, tile; ld.shared.u32 %r2, [%r3+264];");
  EXPECT_NE(shared.find("of shared memory"), std::string::npos) << shared;
  EXPECT_NE(shared.find("ld.shared.u32 %r2, [%r3+264]"), std::string::npos) << shared;
  const std::string global = said_of("ld.global.u32 %r2, [%rd0+128];");
  EXPECT_NE(global.find("128 bytes behind the beginning of an allocation of 128"), std::string::npos) << global;
  EXPECT_NE(said_of("st.global.u32 [8], %r1;").find("no global memory"), std::string::npos);
  EXPECT_NE(said_of(".local .b32 own; mov.u64 %rd2, own; ld.local.u32 %r2, [%rd2+4];").find("local memory"),
            std::string::npos);
  EXPECT_NE(said_of("ld.shared.v2.u32 {%r2, %r3}, [tile+4];").find("not a multiple of 8"), std::string::npos);
}

}  // namespace
}  // namespace strobe::emulator::test
