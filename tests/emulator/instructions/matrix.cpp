// SPDX-License-Identifier: Apache-2.0
// Matrices of a warp: ldmatrix, stmatrix, mma.sync. Products are exact and sums float32, one after the other.
#include <algorithm>

#include "instructions/address.h"
#include "instructions/lanes.h"
#include "instructions/numbers.h"

namespace strobe::emulator {
namespace {

constexpr int kRows = 8;  // of a matrix, of as many elements of 16 bits
constexpr std::size_t kRowBytes = 16;

struct Move {  // as an instruction's detail
  std::uint32_t space : 8;
  std::uint32_t is_wide : 1;
  std::uint32_t transposes : 1;
};

/// Where row `row` of matrix `matrix` is: as the lane says that names it.
std::byte* row_of(Warp& warp, const Instruction& instruction, Move move, int matrix, int row) {
  const int lane = kRows * matrix + row;
  const std::uint64_t address =
      address_in(warp, instruction.argument(0), move.is_wide != 0, instruction.immediate, lane);
  return locate(warp, static_cast<Space>(move.space), address, kRowBytes, kRowBytes, lane);
}

Step load_matrices(Warp& warp, const Instruction& instruction, LaneMask) {
  const auto move = std::bit_cast<Move>(instruction.detail);
  for (int i = 0; i < instruction.results; ++i) {
    std::uint16_t elements[kRows][kRows];
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(elements[row], row_of(warp, instruction, move, i, row), kRowBytes);
    }
    auto* const words = warp.out<std::uint32_t>(instruction.result(i));
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4;
      const int column = 2 * (lane % 4);
      const std::uint32_t low = move.transposes != 0 ? elements[column][row] : elements[row][column];
      const std::uint32_t high = move.transposes != 0 ? elements[column + 1][row] : elements[row][column + 1];
      words[lane] = low | high << 16;
    }
  }
  return Step::next;
}

Step store_matrices(Warp& warp, const Instruction& instruction, LaneMask) {
  const auto move = std::bit_cast<Move>(instruction.detail);
  for (int i = 0; i + 1 < instruction.arguments; ++i) {
    std::uint16_t elements[kRows][kRows];
    const auto* const words = warp.in<std::uint32_t>(instruction.argument(i + 1));
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4;
      const int column = 2 * (lane % 4);
      (move.transposes != 0 ? elements[column][row] : elements[row][column]) = static_cast<std::uint16_t>(words[lane]);
      (move.transposes != 0 ? elements[column + 1][row] : elements[row][column + 1]) =
          static_cast<std::uint16_t>(words[lane] >> 16);
    }
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(row_of(warp, instruction, move, i, row), elements[row], kRowBytes);
    }
  }
  warp.block().grid().note_progress();
  return Step::next;
}

void decode_matrices(Decoder& decoder, const Statement& statement, bool loads) {
  if (!statement.has("m8n8") || !statement.has("b16")) decoder.unsupported("another shape");
  const SourceOperand& vector = statement.operands[loads ? 0 : 1];
  const AddressOperand address = decode_address(decoder, statement.operands[loads ? 1 : 0]);
  const Move move{.space = static_cast<std::uint32_t>(space_of(statement)),
                  .is_wide = address.is_wide ? 1U : 0U,
                  .transposes = statement.has("trans") ? 1U : 0U};
  std::vector<Place> results;
  std::vector<Place> arguments = {address.base};
  const std::vector<SourceOperand> parts =
      vector.kind == SourceOperand::Kind::vector ? vector.parts : std::vector<SourceOperand>{vector};
  for (const SourceOperand& part : parts) {
    if (loads)
      results.push_back(decoder.out(part, 32));
    else
      arguments.push_back(decoder.in(part, 32));
  }
  decoder
      .emit(loads ? load_matrices : store_matrices, results, arguments, address.offset,
            std::bit_cast<std::uint32_t>(move))
      .gather = Gather::all;
}

float element_of(std::uint32_t word, int half, bool is_bfloat) {
  const auto bits = static_cast<std::uint16_t>(word >> (16 * half));
  return is_bfloat ? from_bfloat16(bits) : from_float16(bits);
}

constexpr int kM = 16, kN = 8;  // of every product

/// D = A B + C. Of K columns, in order; rows by themselves, so that none depends on another.
template <int k>
void multiply(const float (&a)[kM][k], const float (&b)[k][kN], float (&d)[kM][kN]) {
  for (int row = 0; row < kM; ++row) {
    for (int i = 0; i < k; ++i) {
      for (int column = 0; column < kN; ++column) {
        d[row][column] = __builtin_fmaf(a[row][i], b[i][column], d[row][column]);
      }
    }
  }
}

void load_sums(const Warp& warp, const Instruction& instruction, int first, float (&d)[kM][kN]) {
  for (int i = 0; i < 4; ++i) {
    const auto* const c = warp.in<float>(instruction.argument(first + i));
    for (int lane = 0; lane < kLanes; ++lane) d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = c[lane];
  }
}

void store_sums(Warp& warp, const Instruction& instruction, const float (&d)[kM][kN]) {
  for (int i = 0; i < 4; ++i) {
    auto* const out = warp.out<float>(instruction.result(i));
    for (int lane = 0; lane < kLanes; ++lane) out[lane] = d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
  }
}

/// Elements of 16 bits, two in a register: K is 8 or 16.
template <int k, bool is_bfloat>
Step multiply_16_bits(Warp& warp, const Instruction& instruction, LaneMask) {
  constexpr int kRegistersOfA = k / 4;
  constexpr int kRegistersOfB = k / 8;
  alignas(64) float a[kM][k];
  alignas(64) float b[k][kN];
  alignas(64) float d[kM][kN];
  for (int i = 0; i < kRegistersOfA; ++i) {
    const auto* const words = warp.in<std::uint32_t>(instruction.argument(i));
    for (int lane = 0; lane < kLanes; ++lane) {
      float* const row = a[lane / 4 + 8 * (i % 2)] + 2 * (lane % 4) + 8 * (i / 2);
      row[0] = element_of(words[lane], 0, is_bfloat);
      row[1] = element_of(words[lane], 1, is_bfloat);
    }
  }
  for (int i = 0; i < kRegistersOfB; ++i) {
    const auto* const words = warp.in<std::uint32_t>(instruction.argument(kRegistersOfA + i));
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = 2 * (lane % 4) + 8 * i;
      b[row][lane / 4] = element_of(words[lane], 0, is_bfloat);
      b[row + 1][lane / 4] = element_of(words[lane], 1, is_bfloat);
    }
  }
  load_sums(warp, instruction, kRegistersOfA + kRegistersOfB, d);
  multiply(a, b, d);
  store_sums(warp, instruction, d);
  return Step::next;
}

/// float32 whose 13 lowest bits are not looked at; K is 4 or 8.
template <int k>
Step multiply_tf32(Warp& warp, const Instruction& instruction, LaneMask) {
  constexpr int kRegistersOfA = k / 2;
  constexpr int kRegistersOfB = k / 4;
  constexpr std::uint32_t kKept = 0xffffe000U;
  alignas(64) float a[kM][k];
  alignas(64) float b[k][kN];
  alignas(64) float d[kM][kN];
  for (int i = 0; i < kRegistersOfA; ++i) {
    const auto* const words = warp.in<std::uint32_t>(instruction.argument(i));
    for (int lane = 0; lane < kLanes; ++lane) {
      a[lane / 4 + 8 * (i % 2)][lane % 4 + 4 * (i / 2)] = float_of(words[lane] & kKept);
    }
  }
  for (int i = 0; i < kRegistersOfB; ++i) {
    const auto* const words = warp.in<std::uint32_t>(instruction.argument(kRegistersOfA + i));
    for (int lane = 0; lane < kLanes; ++lane) b[lane % 4 + 4 * i][lane / 4] = float_of(words[lane] & kKept);
  }
  load_sums(warp, instruction, kRegistersOfA + kRegistersOfB, d);
  multiply(a, b, d);
  store_sums(warp, instruction, d);
  return Step::next;
}

/// Integers of 8 bits, four in a register, with sums of 32 bits.
template <bool a_signed, bool b_signed>
Step multiply_8_bits(Warp& warp, const Instruction& instruction, LaneMask) {
  constexpr int k = 32;
  std::int32_t a[kM][k];
  std::int32_t b[k][kN];
  const auto byte = [](std::uint32_t word, int i, bool is_signed_byte) -> std::int32_t {
    const auto bits = static_cast<std::uint8_t>(word >> (8 * i));
    return is_signed_byte ? static_cast<std::int8_t>(bits) : bits;
  };
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int e = 0; e < 4; ++e) {
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t word = warp.in<std::uint32_t>(instruction.argument(i))[lane];
        a[lane / 4 + 8 * (i % 2)][4 * (lane % 4) + e + 16 * (i / 2)] = byte(word, e, a_signed);
      }
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t word = warp.in<std::uint32_t>(instruction.argument(4 + i))[lane];
        b[4 * (lane % 4) + e + 16 * i][lane / 4] = byte(word, e, b_signed);
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    const auto* const c = warp.in<std::int32_t>(instruction.argument(6 + i));
    std::int32_t sums[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] = c[lane];
      for (int j = 0; j < k; ++j) {
        sums[lane] += a[lane / 4 + 8 * (i / 2)][j] * b[j][2 * (lane % 4) + i % 2];
      }
    }
    warp.store(instruction.result(i), sums, kAllLanes);
  }
  return Step::next;
}

Handler product_handler(const Statement& statement) {
  const auto count = statement.opcode.size();
  const std::string_view a = statement.opcode[count - 3];
  const std::string_view b = statement.opcode[count - 2];
  const std::string_view sums = statement.opcode.back();
  if (statement.has("m16n8k32") && sums == "s32" && a.ends_with('8') && b.ends_with('8')) {
    if (is_signed(a)) return is_signed(b) ? multiply_8_bits<true, true> : multiply_8_bits<true, false>;
    return is_signed(b) ? multiply_8_bits<false, true> : multiply_8_bits<false, false>;
  }
  if (sums != "f32" || a != b || statement.opcode[count - 4] != "f32") return nullptr;
  if (statement.has("m16n8k16") && a == "bf16") return multiply_16_bits<16, true>;
  if (statement.has("m16n8k16") && a == "f16") return multiply_16_bits<16, false>;
  if (statement.has("m16n8k8") && a == "bf16") return multiply_16_bits<8, true>;
  if (statement.has("m16n8k8") && a == "f16") return multiply_16_bits<8, false>;
  if (statement.has("m16n8k8") && a == "tf32") return multiply_tf32<8>;
  return statement.has("m16n8k4") && a == "tf32" ? multiply_tf32<4> : nullptr;
}

void decode_product(Decoder& decoder, const Statement& statement) {
  const Handler handler = product_handler(statement);
  if (handler == nullptr || !statement.has("row") || !statement.has("col")) decoder.unsupported("another product");
  std::vector<Place> results;
  std::vector<Place> arguments;
  for (std::size_t i = 1; i < statement.operands.size(); ++i) {
    const SourceOperand& operand = statement.operands[i];
    const bool is_vector = operand.kind == SourceOperand::Kind::vector;
    for (const SourceOperand& part : is_vector ? operand.parts : std::vector<SourceOperand>{operand}) {
      arguments.push_back(decoder.in(part, 32));
    }
  }
  for (const SourceOperand& part : statement.operands[0].parts) results.push_back(decoder.out(part, 32));
  decoder.emit(handler, results, arguments).gather = Gather::all;
}

}  // namespace

void add_matrix(DecodeTable& table) {
  table["ldmatrix"] = [](Decoder& decoder, const Statement& statement) { decode_matrices(decoder, statement, true); };
  table["stmatrix"] = [](Decoder& decoder, const Statement& statement) { decode_matrices(decoder, statement, false); };
  table["mma"] = decode_product;
}

}  // namespace strobe::emulator
