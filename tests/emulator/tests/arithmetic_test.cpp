// SPDX-License-Identifier: Apache-2.0
// Instructions of single threads against results that PTX defines.
#include <cmath>

#include "tests/program.h"

namespace strobe::emulator::test {
namespace {

TEST(EmulatedIntegers, AddMultiplyAndDivide) {
  EXPECT_EQ(result_of("add.s32 %r2, %r1, -5;", 3), 0xfffffffeU);
  EXPECT_EQ(result_of("mul.hi.u32 %r2, %r1, 0x10000;", 0x12345678), 0x1234U);
  EXPECT_EQ(result_of("mad.lo.s32 %r2, %r1, -3, 10;", 7), static_cast<std::uint32_t>(-11));
  EXPECT_EQ(result_of("div.s32 %r2, %r1, 3;", static_cast<std::uint32_t>(-7)), static_cast<std::uint32_t>(-2));
  EXPECT_EQ(result_of("rem.s32 %r2, %r1, 3;", static_cast<std::uint32_t>(-7)), static_cast<std::uint32_t>(-1));
  EXPECT_EQ(result_of("div.u32 %r2, %r1, 0;", 1), 0xffffffffU);
  EXPECT_EQ(result_of("min.u32 %r2, %r1, 5;", 0xffffffff), 5U);
  EXPECT_EQ(result_of("min.s32 %r2, %r1, 5;", 0xffffffff), 0xffffffffU);
}

TEST(EmulatedIntegers, CarriesRunThroughSums) {
  EXPECT_EQ(result_of("add.cc.u32 %r3, %r1, 1; addc.u32 %r2, 0, 0;", 0xffffffff), 1U);
  EXPECT_EQ(result_of("sub.cc.u32 %r3, %r1, 1; subc.u32 %r2, 5, 0;", 0), 4U);
}

TEST(EmulatedIntegers, WideProductsAndParts) {
  EXPECT_EQ(result_of("mul.wide.s32 %rd2, %r1, %r1; mov.b64 {%r3, %r2}, %rd2;", 0x20000), 4U);
  EXPECT_EQ(result_of("mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r2, {%rs2, %rs1};", 0x12345678), 0x56781234U);
}

TEST(EmulatedBits, ShiftsBeyondTheWidth) {
  EXPECT_EQ(result_of("shl.b32 %r2, %r1, 32;", 1), 0U);
  EXPECT_EQ(result_of("shr.u32 %r2, %r1, 40;", 0x80000000), 0U);
  EXPECT_EQ(result_of("shr.s32 %r2, %r1, 40;", 0x80000000), 0xffffffffU);
  EXPECT_EQ(result_of("shf.l.wrap.b32 %r2, %r1, 0x1, 36;", 0x80000000), 0x18U);
  EXPECT_EQ(result_of("shf.r.clamp.b32 %r2, %r1, 0x5, 32;", 7), 5U);
}

TEST(EmulatedBits, FieldsAndTables) {
  EXPECT_EQ(result_of("bfe.u32 %r2, %r1, 8, 8;", 0x12345678), 0x56U);
  EXPECT_EQ(result_of("bfe.s32 %r2, %r1, 4, 4;", 0x80), 0xfffffff8U);
  EXPECT_EQ(result_of("bfi.b32 %r2, 0xff, %r1, 4, 4;", 0), 0xf0U);
  EXPECT_EQ(result_of("prmt.b32 %r2, %r1, 0xaabbccdd, 0x7b01;", 0x12345678), 0xaa007856U | 0x00000000U);
  EXPECT_EQ(result_of("lop3.b32 %r2, %r1, 0xff00ff00, 0x0f0f0f0f, 0xca;", 0xffff0000),
            (0xffff0000U & 0xff00ff00U) | (~0xffff0000U & 0x0f0f0f0fU));
  EXPECT_EQ(result_of("popc.b32 %r2, %r1;", 0xf0f0), 8U);
  EXPECT_EQ(result_of("clz.b32 %r2, %r1;", 0x10), 27U);
  EXPECT_EQ(result_of("bfind.s32 %r2, %r1;", 0xfffffff0), 3U);
  EXPECT_EQ(result_of("brev.b32 %r2, %r1;", 1), 0x80000000U);
}

std::uint32_t of_float(const std::string& body, float x) { return result_of("mov.b32 %f1, %r1;" + body, word(x)); }
float float_of_float(const std::string& body, float x) { return real(of_float(body + "mov.b32 %r2, %f2;", x)); }

TEST(EmulatedFloats, RoundInEveryDirection) {
  const float third = 1.0F / 3.0F;
  EXPECT_EQ(float_of_float("div.rn.f32 %f2, 0f3f800000, %f1;", 3.0F), third);
  EXPECT_EQ(float_of_float("div.rz.f32 %f2, 0f3f800000, %f1;", 3.0F), std::nextafter(third, 0.0F));
  EXPECT_EQ(float_of_float("add.rp.f32 %f2, %f1, 0f30000000;", 1.0F), std::nextafter(1.0F, 2.0F));
  EXPECT_EQ(float_of_float("fma.rn.f32 %f2, %f1, %f1, 0fbf800000;", 1.0F + 0x1p-23F), 0x1p-22F + 0x1p-46F);
}

TEST(EmulatedFloats, MinimumAndNan) {
  EXPECT_EQ(float_of_float("min.f32 %f2, %f1, 0f3f800000;", NAN), 1.0F);
  EXPECT_TRUE(std::isnan(float_of_float("min.NaN.f32 %f2, %f1, 0f3f800000;", NAN)));
  EXPECT_EQ(float_of_float("add.ftz.f32 %f2, %f1, 0f00000000;", 1e-40F), 0.0F);
  EXPECT_EQ(float_of_float("add.f32 %f2, %f1, 0f00000000;", 1e-40F), 1e-40F);
  EXPECT_EQ(float_of_float("mul.sat.f32 %f2, %f1, 0f40000000;", 3.0F), 1.0F);
}

TEST(EmulatedFloats, ApproximationsAreExactToAFewPlaces) {
  for (const float x : {-149.0F, -126.5F, -3.25F, 0.0F, 0.5F, 17.125F, 127.9F}) {
    const auto expected = static_cast<float>(std::exp2(static_cast<double>(x)));
    EXPECT_FLOAT_EQ(float_of_float("ex2.approx.f32 %f2, %f1;", x), expected) << x;
  }
  EXPECT_EQ(float_of_float("ex2.approx.ftz.f32 %f2, %f1;", -INFINITY), 0.0F);
  EXPECT_EQ(float_of_float("ex2.approx.ftz.f32 %f2, %f1;", 200.0F), INFINITY);
  EXPECT_EQ(float_of_float("lg2.approx.ftz.f32 %f2, %f1;", 0.0F), -INFINITY);
  EXPECT_FLOAT_EQ(float_of_float("tanh.approx.f32 %f2, %f1;", 0.75F), std::tanh(0.75F));
}

TEST(EmulatedConversions, OfFloatsToIntegers) {
  EXPECT_EQ(of_float("cvt.rzi.s32.f32 %r2, %f1;", -2.7F), static_cast<std::uint32_t>(-2));
  EXPECT_EQ(of_float("cvt.rni.s32.f32 %r2, %f1;", 2.5F), 2U);
  EXPECT_EQ(of_float("cvt.rmi.s32.f32 %r2, %f1;", -2.1F), static_cast<std::uint32_t>(-3));
  EXPECT_EQ(of_float("cvt.rzi.u32.f32 %r2, %f1;", -1.0F), 0U);
  EXPECT_EQ(of_float("cvt.rzi.s32.f32 %r2, %f1;", 1e20F), 0x7fffffffU);
  EXPECT_EQ(of_float("cvt.rzi.s32.f32 %r2, %f1;", NAN), 0U);
}

TEST(EmulatedConversions, OfNarrowTypes) {
  EXPECT_EQ(result_of("cvt.u16.u32 %rs1, %r1; cvt.s32.s8 %r2, %rs1;", 0x1ff), 0xffffffffU);
  EXPECT_EQ(of_float("cvt.rn.bf16x2.f32 %r2, 0f40000000, %f1;", 1.0F), 0x40003f80U);
  EXPECT_EQ(of_float("cvt.rn.f16x2.f32 %r2, 0f40000000, %f1;", 1.0F), 0x40003c00U);
  EXPECT_EQ(of_float("cvt.rn.f16x2.f32 %r2, %f1, %f1;", 0x1p-24F), 0x00010001U);
  EXPECT_EQ(of_float("cvt.rn.satfinite.e4m3x2.f32 %rs1, 0f44000000, %f1; cvt.u32.u16 %r2, %rs1;", -1.0625F), 0x7eb8U);
  EXPECT_EQ(result_of("cvt.u16.u32 %rs1, %r1; cvt.rn.f16x2.e4m3x2 %r2, %rs1;", 0x3801), 0x3c001800U);
  EXPECT_EQ(of_float("cvt.rna.tf32.f32 %r2, %f1;", 1.0F + 0x1p-11F), word(1.0F + 0x1p-10F));
}

TEST(EmulatedComparisons, OfNanAreUnordered) {
  const auto holds = [](const std::string& comparison) {
    return of_float("setp." + comparison + ".f32 %p1, %f1, 0f00000000; selp.u32 %r2, 1, 0, %p1;", NAN);
  };
  EXPECT_EQ(holds("lt"), 0U);
  EXPECT_EQ(holds("ltu"), 1U);
  EXPECT_EQ(holds("ne"), 0U);
  EXPECT_EQ(holds("neu"), 1U);
  EXPECT_EQ(result_of("setp.lt.and.s32 %p1|%p2, %r1, 0, 1; selp.u32 %r2, 1, 2, %p2;", 5), 1U);
}

TEST(EmulatedHalves, AreRoundedOnce) {
  EXPECT_EQ(result_of("fma.rn.bf16x2 %r2, %r1, %r1, %r1;", 0x3f803f80), 0x40004000U);
  EXPECT_EQ(result_of("add.rn.f16x2 %r2, %r1, 0x3c003c00;", 0x3c00bc00), 0x40000000U);
  EXPECT_EQ(result_of("set.lt.u32.f16x2 %r2, %r1, 0x3c003c00;", 0x00004000), 0xffff0000U);
}

}  // namespace
}  // namespace strobe::emulator::test
