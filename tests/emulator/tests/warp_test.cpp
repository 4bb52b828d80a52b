// SPDX-License-Identifier: Apache-2.0
// Lanes that part and meet again, and what they do together.
#include "tests/program.h"

namespace strobe::emulator::test {
namespace {

constexpr std::size_t kWarp = 32;

TEST(EmulatedWarp, LanesPartAndMeet) {
  // The sum of all lanes after each half has added something else, in loops of different lengths.
  PtxProgram program(R"(
    mov.u32 %r3, 0;
    and.b32 %r4, %r0, 1;
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra even;
    mov.u32 %r5, %r0;
  again:
    add.u32 %r3, %r3, 1;
    sub.u32 %r5, %r5, 1;
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra again;
    bra.uni join;
  even:
    mov.u32 %r3, 100;
  join:
    redux.sync.add.u32 %r2, %r3, 0xffffffff;
  )");
  EXPECT_EQ(program.run_warp(counted(kWarp)), Words(kWarp, 16 * 16 + 16 * 100));
}

TEST(EmulatedWarp, GuardsHoldBackSingleLanes) {
  PtxProgram program("mov.u32 %r2, 7; setp.gt.u32 %p1, %r1, 29; @%p1 mov.u32 %r2, %r1; @!%p1 add.u32 %r2, %r2, 1;");
  Words expected(kWarp, 8);
  expected[30] = 30;
  expected[31] = 31;
  EXPECT_EQ(program.run_warp(counted(kWarp)), expected);
}

TEST(EmulatedWarp, BranchesByAnIndex) {
  PtxProgram program(R"(
    and.b32 %r3, %r0, 3;
  list: .branchtargets a, b, c, a;
    brx.idx %r3, list;
  a: mov.u32 %r2, 1; bra end;
  b: mov.u32 %r2, 2; bra end;
  c: mov.u32 %r2, 3;
  end: bar.warp.sync 0xffffffff;
  )");
  const Words result = program.run_warp(counted(kWarp));
  EXPECT_EQ(Words(result.begin(), result.begin() + 4), (Words{1, 2, 3, 1}));
}

TEST(EmulatedWarp, Shuffles) {
  PtxProgram down("shfl.sync.down.b32 %r2|%p1, %r1, 4, 0x1f, 0xffffffff; @!%p1 mov.u32 %r2, 99;");
  const Words moved = down.run_warp(counted(kWarp));
  EXPECT_EQ(moved[0], 4U);
  EXPECT_EQ(moved[27], 31U);
  EXPECT_EQ(moved[28], 99U);
  PtxProgram up("shfl.sync.up.b32 %r2, %r1, 1, 0x0, 0xffffffff;");
  EXPECT_EQ(up.run_warp(counted(kWarp))[0], 0U);
  EXPECT_EQ(up.run_warp(counted(kWarp))[9], 8U);
  PtxProgram butterfly("shfl.sync.bfly.b32 %r2, %r1, 16, 0x1f, 0xffffffff;");
  EXPECT_EQ(butterfly.run_warp(counted(kWarp))[3], 19U);
  // Within quads by the clamp's upper byte, as the lane 4 q + lane % 4 of another quad.
  PtxProgram quads("shfl.sync.idx.b32 %r2, %r1, 20, 0x31f, 0xffffffff;");
  EXPECT_EQ(quads.run_warp(counted(kWarp))[6], 22U);
}

TEST(EmulatedWarp, VotesAndMatches) {
  PtxProgram votes(R"(
    setp.lt.u32 %p1, %r1, 5;
    vote.sync.ballot.b32 %r3, %p1, 0xffffffff;
    vote.sync.any.pred %p2, %p1, 0xffffffff;
    vote.sync.all.pred %p3, %p1, 0xffffffff;
    selp.u32 %r4, 0x100, 0, %p2;
    selp.u32 %r5, 0x200, 0, %p3;
    or.b32 %r2, %r3, %r4;
    or.b32 %r2, %r2, %r5;
  )");
  EXPECT_EQ(votes.run_warp(counted(kWarp)), Words(kWarp, 0x11f));
  PtxProgram matches("and.b32 %r3, %r1, 3; match.any.sync.b32 %r2, %r3, 0xffffffff;");
  EXPECT_EQ(matches.run_warp(counted(kWarp))[5], 0x22222222U);
}

TEST(EmulatedWarp, ElectsTheFirstOfThoseNamed) {
  PtxProgram program(R"(
    mov.u32 %r2, 0;
    setp.lt.u32 %p1, %r0, 4;
    @%p1 bra end;
    elect.sync %r3|%p2, 0xfffffff0;
    selp.u32 %r2, %r3, 0, %p2;
  end:
  )");
  Words expected(kWarp, 0);
  expected[4] = 4;
  EXPECT_EQ(program.run_warp(counted(kWarp)), expected);
}

TEST(EmulatedWarp, ANamedLaneThatNeverComesIsReported) {
  PtxProgram program(R"(
    setp.eq.u32 %p1, %r0, 3;
    @%p1 bar.sync 1;
    shfl.sync.idx.b32 %r2, %r1, 0, 0x1f, 0xffffffff;
  )");
  EXPECT_NE(fault_of(program, counted(kWarp)).find("wait for something that does not happen"), std::string::npos);
}

}  // namespace
}  // namespace strobe::emulator::test
