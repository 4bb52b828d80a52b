// SPDX-License-Identifier: Apache-2.0
#include "cpu/bfloat16/unit.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace strobe::cpu::bf16 {

#if defined(__x86_64__) && defined(__linux__)
namespace {

bool bit(std::uint64_t word, int index) { return ((word >> index) & 1U) != 0; }

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros where the processor has no such leaf.
// Intel's Software Developer's Manual, volume 2, CPUID; volume 1, chapters 13 and 18.
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  return __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) != 0 ? r : Registers{};
}

bool has_dot_products() { return bit(cpuid(7, 1).eax, 5); }  // AVX512_BF16

bool has_tiles() {
  const unsigned edx = cpuid(7, 0).edx;
  return bit(edx, 22) && bit(edx, 24);  // AMX-BF16, AMX-TILE
}

bool system_saves_tiles() {
  if (!bit(cpuid(1, 0).ecx, 27)) return false;  // OSXSAVE: xgetbv exists
  unsigned eax = 0;
  unsigned edx = 0;
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return bit(eax, 17) && bit(eax, 18);  // XTILECFG, XTILEDATA
}

// Linux gives tile state, 8 KiB a thread, to processes that ask: Documentation/arch/x86/xstate.rst.
bool ask_for_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
}

}  // namespace

// Rounding needs AVX512_BF16 beside AMX, too.
Unit processor_unit() {
  if (!has_dot_products()) return Unit::none;
  return has_tiles() && system_saves_tiles() && ask_for_permission() ? Unit::tiles : Unit::dot_products;
}
#else
Unit processor_unit() { return Unit::none; }
#endif

}  // namespace strobe::cpu::bf16
