// SPDX-License-Identifier: Apache-2.0
// wgmma: products of a warpgroup, of which each of four warps computes 16 rows by itself. They are complete at once.
#include <array>
#include <charconv>

#include "instructions/descriptor.h"
#include "instructions/lanes.h"
#include "instructions/numbers.h"

namespace strobe::emulator {
namespace {

constexpr int kRows = 16;  // of a warp
constexpr int kMostColumns = 256;

enum class Element : std::uint8_t { f16, bf16, e4m3, s8, u8 };

struct Product {  // as an instruction's detail
  std::uint32_t columns : 10;
  std::uint32_t a_in_registers : 1;
  std::uint32_t a_element : 3;
  std::uint32_t b_element : 3;
  std::uint32_t a_transposed : 1;
  std::uint32_t b_transposed : 1;
  std::uint32_t negates_a : 1;
  std::uint32_t negates_b : 1;
};

constexpr bool is_8_bits(Element element) { return element >= Element::e4m3; }
constexpr int columns_of_a(Element element) { return is_8_bits(element) ? 32 : 16; }  // K

float number(std::uint32_t bits, Element element) {
  static const std::array<float, 256> e4m3 = [] {
    std::array<float, 256> table{};
    for (std::size_t i = 0; i < 256; ++i) table[i] = from_e4m3(static_cast<std::uint8_t>(i));
    return table;
  }();
  switch (element) {
    case Element::f16: return from_float16(static_cast<std::uint16_t>(bits));
    case Element::bf16: return from_bfloat16(static_cast<std::uint16_t>(bits));
    case Element::e4m3: return e4m3[bits & 0xff];
    case Element::s8: return static_cast<float>(static_cast<std::int8_t>(bits));
    case Element::u8: return static_cast<float>(bits & 0xff);
  }
  return 0.0F;
}

/// Elements of a piece of 16 bytes, each `stride` floats behind the one before.
void read_piece(const std::byte* piece, Element element, float* to, int stride) {
  if (is_8_bits(element)) {
    for (int i = 0; i < 16; ++i) to[i * stride] = number(static_cast<std::uint32_t>(piece[i]), element);
    return;
  }
  std::uint16_t bits[8];
  std::memcpy(bits, piece, sizeof(bits));
  for (int i = 0; i < 8; ++i) to[i * stride] = number(bits[i], element);
}

struct Operands {
  alignas(64) float a[kRows][32];
  alignas(64) float b[32][kMostColumns];
};

void read_a(Warp& warp, const Instruction& instruction, Product product, int first, Operands& operands) {
  const auto element = static_cast<Element>(product.a_element);
  const int k = columns_of_a(element);
  const int row_of_warp = warp.index() % 4 * kRows;
  if (product.a_in_registers != 0) {
    const int per_word = k / 8;  // elements
    for (int i = 0; i < 4; ++i) {
      const auto* const words = warp.in<std::uint32_t>(instruction.argument(first + i));
      for (int lane = 0; lane < kLanes; ++lane) {
        float* const row = operands.a[lane / 4 + 8 * (i % 2)] + per_word * (lane % 4) + k / 2 * (i / 2);
        for (int e = 0; e < per_word; ++e) row[e] = number(words[lane] >> (32 / per_word * e), element);
      }
    }
    return;
  }
  const Descriptor descriptor(warp.in<std::uint64_t>(instruction.argument(first))[0]);
  if (product.a_transposed != 0) {
    for (int i = 0; i < k; ++i) {
      for (int row = 0; row < kRows; row += 8) {
        read_piece(descriptor.mn_major(warp.block(), row_of_warp + row, i), element, &operands.a[row][i], 32);
      }
    }
    return;
  }
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < 2; ++half) {
      read_piece(descriptor.k_major(warp.block(), row_of_warp + row, 16 * half), element,
                 &operands.a[row][k / 2 * half], 1);
    }
  }
}

void read_b(Warp& warp, const Instruction& instruction, Product product, int argument, Operands& operands) {
  const auto element = static_cast<Element>(product.b_element);
  const int k = columns_of_a(element);
  const auto columns = static_cast<int>(product.columns);
  const Descriptor descriptor(warp.in<std::uint64_t>(instruction.argument(argument))[0]);
  if (product.b_transposed != 0) {
    for (int i = 0; i < k; ++i) {
      for (int column = 0; column < columns; column += 8) {
        read_piece(descriptor.mn_major(warp.block(), column, i), element, &operands.b[i][column], 1);
      }
    }
    return;
  }
  for (int column = 0; column < columns; ++column) {
    for (int half = 0; half < 2; ++half) {
      read_piece(descriptor.k_major(warp.block(), column, 16 * half), element, &operands.b[k / 2 * half][column],
                 kMostColumns);
    }
  }
}

/// Sums of Sum, float or std::int32_t; integers of 8 bits and their products are exact as floats, sums of 32 of them
/// too.
template <typename Sum>
Step multiply(Warp& warp, const Instruction& instruction, LaneMask) {
  static thread_local Operands operands;
  const auto product = std::bit_cast<Product>(instruction.detail);
  const int registers = instruction.results;
  const auto columns = static_cast<int>(product.columns);
  const int k = columns_of_a(static_cast<Element>(product.a_element));
  const int b_argument = registers + (product.a_in_registers != 0 ? 4 : 1);
  read_a(warp, instruction, product, registers, operands);
  read_b(warp, instruction, product, b_argument, operands);
  const bool adds = warp.predicate(instruction.argument(b_argument + 1)) != 0;
  const float sign = product.negates_a != product.negates_b ? -1.0F : 1.0F;
  alignas(64) float sums[kRows][kMostColumns];
  constexpr bool kIsFloat = std::is_same_v<Sum, float>;
  const auto row_of = [](int i, int lane) { return lane / 4 + 8 * (i / 2 % 2); };
  const auto column_of = [](int i, int lane) { return 8 * (i / 4) + 2 * (lane % 4) + i % 2; };
  for (int i = 0; i < registers; ++i) {
    const auto* const kept = warp.in<float>(instruction.argument(i));
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[row_of(i, lane)][column_of(i, lane)] = adds && kIsFloat ? kept[lane] : 0.0F;
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int j = 0; j < k; ++j) {
      const float a = sign * operands.a[row][j];
      for (int column = 0; column < columns; ++column) {
        sums[row][column] = __builtin_fmaf(a, operands.b[j][column], sums[row][column]);
      }
    }
  }
  for (int i = 0; i < registers; ++i) {
    const auto* const kept = warp.in<Sum>(instruction.argument(i));
    Sum values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      values[lane] = static_cast<Sum>(sums[row_of(i, lane)][column_of(i, lane)]);
      if (!kIsFloat && adds) values[lane] += kept[lane];
    }
    warp.store(instruction.result(i), values, kAllLanes);
  }
  return Step::next;
}

Element element_named(Decoder& decoder, std::string_view type) {
  if (type == "f16") return Element::f16;
  if (type == "bf16") return Element::bf16;
  if (type == "e4m3") return Element::e4m3;
  if (type == "s8") return Element::s8;
  if (type == "u8") return Element::u8;
  decoder.unsupported("another type");
}

std::uint32_t columns_named(Decoder& decoder, std::string_view shape) {
  std::uint32_t columns = 0;
  if (!shape.starts_with("m64n")) decoder.unsupported("another shape");
  std::from_chars(shape.data() + 4, shape.data() + shape.size(), columns);
  if (columns == 0 || columns % 8 != 0 || columns > kMostColumns) decoder.unsupported("another shape");
  return columns;
}

void decode_product(Decoder& decoder, const Statement& statement) {
  const auto& operands = statement.operands;
  const auto& opcode = statement.opcode;
  const std::string_view sums = opcode[opcode.size() - 3];
  if (sums != "f32" && sums != "s32") decoder.unsupported("other sums");
  const auto immediate = [&](std::size_t i, std::int64_t otherwise) {
    return i < operands.size() ? operands[i].integer : otherwise;
  };
  Product product{};
  for (const std::string_view part : opcode) {
    if (part.starts_with("m64n")) product.columns = columns_named(decoder, part);
  }
  const Element a = element_named(decoder, opcode[opcode.size() - 2]);
  const Element b = element_named(decoder, opcode.back());
  const bool in_registers = operands[1].kind == SourceOperand::Kind::vector;
  product.a_element = static_cast<std::uint32_t>(a);
  product.b_element = static_cast<std::uint32_t>(b);
  product.a_in_registers = in_registers ? 1 : 0;
  if (sums == "f32") {
    product.negates_a = immediate(4, 1) < 0 ? 1 : 0;
    product.negates_b = immediate(5, 1) < 0 ? 1 : 0;
    product.a_transposed = !in_registers && immediate(6, 0) != 0 ? 1 : 0;
    product.b_transposed = immediate(in_registers ? 6 : 7, 0) != 0 ? 1 : 0;
  }
  std::vector<Place> results;
  std::vector<Place> arguments;
  for (const SourceOperand& part : operands[0].parts) {
    results.push_back(decoder.out(part, 32));
    arguments.push_back(decoder.in(part, 32));
  }
  if (results.size() * 2 != product.columns) decoder.unsupported("another number of sums");
  if (in_registers) {
    for (const SourceOperand& part : operands[1].parts) arguments.push_back(decoder.in(part, 32));
  } else {
    arguments.push_back(decoder.in(operands[1], 64));
  }
  arguments.push_back(decoder.in(operands[2], 64));
  arguments.push_back(decoder.in(operands[3], 1));
  decoder
      .emit(sums == "f32" ? multiply<float> : multiply<std::int32_t>, results, arguments, 0,
            std::bit_cast<std::uint32_t>(product))
      .gather = Gather::all;
}

}  // namespace

void add_warpgroup(DecodeTable& table) {
  table["wgmma"] = [](Decoder& decoder, const Statement& statement) {
    if (statement.has("mma_async")) decode_product(decoder, statement);  // fences and waits find it complete
  };
}

}  // namespace strobe::emulator
