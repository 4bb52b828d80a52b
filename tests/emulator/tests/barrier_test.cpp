// SPDX-License-Identifier: Apache-2.0
// Warps that wait for one another.
#include "tests/program.h"

namespace strobe::emulator::test {
namespace {

const std::string kTile =
    ".shared .align 16 .b8 tile[256];\n.shared .align 8 .b64 full;\n.shared .align 8 .b64 empty;\n";

TEST(EmulatedBarriers, ReduceAPredicate) {
  PtxProgram program(R"(
    setp.eq.u32 %p1, %r1, 40;
    bar.red.or.pred %p2, 2, 64, %p1;
    bar.red.and.pred %p3, 2, 64, %p1;
    bar.red.popc.u32 %r3, 2, 64, !%p1;
    selp.u32 %r4, 100, 0, %p2;
    selp.u32 %r5, 200, 0, %p3;
    add.u32 %r2, %r3, %r4;
    add.u32 %r2, %r2, %r5;
  )");
  EXPECT_EQ(program.run(counted(64)), Words(64, 163));
}

TEST(EmulatedBarriers, OneWarpArrivesAndAnotherWaits) {
  PtxProgram program(R"(
    mov.u32 %r2, 0;
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra producer;
    bar.sync 3, 64;
    ld.shared.u32 %r2, [tile];
    bra.uni end;
  producer:
    st.shared.u32 [tile], 77;
    bar.arrive 3, 64;
  end:
  )",
                     kTile);
  Words expected(64, 77);
  std::fill(expected.begin(), expected.begin() + 32, 0);
  EXPECT_EQ(program.run(counted(64)), expected);
}

/// Warp 0 writes 1, 2, ... 5 into one place, warp 1 adds up what it reads there: each waits for the other.
constexpr const char* kPipeline = R"(
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra ready;
    mbarrier.init.shared.b64 [full], 32;
    mbarrier.init.shared.b64 [empty], 32;
  ready:
    bar.sync 0;
    mov.u32 %r2, 0;
    mov.u32 %r4, 0;
    setp.lt.u32 %p2, %r0, 32;
  loop:
    and.b32 %r5, %r4, 1;
    xor.b32 %r6, %r5, 1;
    @!%p2 bra consumer;
  wait_empty:
    mbarrier.try_wait.parity.shared.b64 %p3, [empty], %r6;
    @!%p3 bra wait_empty;
    add.u32 %r7, %r4, 1;
    st.shared.u32 [tile], %r7;
    mbarrier.arrive.shared.b64 %rd5, [full];
    bra.uni next;
  consumer:
    mbarrier.test_wait.parity.shared.b64 %p3, [full], %r5;
    @!%p3 bra consumer;
    ld.shared.u32 %r7, [tile];
    add.u32 %r2, %r2, %r7;
    mbarrier.arrive.shared.b64 _, [empty];
  next:
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 5;
    @%p4 bra loop;
)";

TEST(EmulatedBarriers, PhasesOfAPipeline) {
  PtxProgram program(kPipeline, kTile);
  Words expected(64, 15);
  std::fill(expected.begin(), expected.begin() + 32, 0);
  EXPECT_EQ(program.run(counted(64)), expected);
}

TEST(EmulatedBarriers, CopiesArriveForTheirThreads) {
  PtxProgram program(R"(
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra ready;
    mbarrier.init.shared.b64 [full], 32;
  ready:
    bar.sync 0;
    mov.u32 %r3, tile;
    shl.b32 %r4, %r0, 2;
    add.u32 %r3, %r3, %r4;
    add.u64 %rd2, %rd0, %rd38;
    cp.async.ca.shared.global [%r3], [%rd2], 4;
    cp.async.mbarrier.arrive.noinc.shared.b64 [full];
  wait:
    mbarrier.try_wait.parity.shared.b64 %p3, [full], 0;
    @!%p3 bra wait;
    ld.shared.u32 %r2, [tile+124];
  )",
                     kTile);
  EXPECT_EQ(program.run(counted(32)), Words(32, 31));
}

TEST(EmulatedBarriers, MistakesAreReported) {
  PtxProgram forgotten("mbarrier.arrive.shared.b64 %rd5, [full]; mov.u32 %r2, 0;", kTile);
  EXPECT_NE(fault_of(forgotten, counted(32)).find("not initialised"), std::string::npos);
  PtxProgram too_many(R"(
    setp.ne.u32 %p1, %r0, 0;
    @!%p1 mbarrier.init.shared.b64 [full], 41;
    bar.sync 0;
    mbarrier.arrive.shared.b64 %rd5, [full];
    mbarrier.arrive.shared.b64 %rd5, [full], 2;
    mov.u32 %r2, 0;
  )",
                      kTile);
  EXPECT_NE(fault_of(too_many, counted(32)).find("more arrivals"), std::string::npos);
  PtxProgram alone("setp.lt.u32 %p1, %r0, 32; @%p1 bra end; bar.sync 1, 64; end: mov.u32 %r2, 0;");
  EXPECT_NE(fault_of(alone, counted(64)).find("bar.sync 1, 64"), std::string::npos);
}

// Blocks that wait for those before them: the counter is in memory that the kernel finds among its parameters.
TEST(EmulatedBlocks, WaitForOneAnother) {
  const DeviceWords counter({0});
  PtxProgram program(R"(
    mov.u32 %r2, 0;
    ld.param.u64 %rd3, [maps];
  wait:
    ld.acquire.gpu.global.u32 %r3, [%rd3];
    setp.ne.u32 %p2, %r3, %r198;
    @%p2 bra wait;
    bar.sync 0;
    setp.ne.u32 %p1, %r0, 0;
    add.u32 %r2, %r3, 1;
    @!%p1 st.release.gpu.global.u32 [%rd3], %r2;
  )");
  const std::uint64_t address = counter.address();
  std::memcpy(program.maps.data(), &address, sizeof(address));
  const Words result = program.run(Words(64 * 20, 0), 20);
  EXPECT_EQ(result[0], 1U);
  EXPECT_EQ(result[64 * 19 + 63], 20U);
}

}  // namespace
}  // namespace strobe::emulator::test
