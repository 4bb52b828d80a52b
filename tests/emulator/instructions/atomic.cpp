// SPDX-License-Identifier: Apache-2.0
// atom and red: lanes one after the other.
#include <algorithm>
#include <cmath>

#include "instructions/address.h"
#include "instructions/lanes.h"
#include "instructions/numbers.h"

namespace strobe::emulator {
namespace {

enum class Operation : std::uint8_t { add, min, max, inc, dec, bit_and, bit_or, bit_xor, exchange, compare };

struct Atomic {  // as an instruction's detail
  std::uint32_t space : 8;
  std::uint32_t is_wide : 1;
  std::uint32_t operation : 4;
  std::uint32_t count : 4;  // elements of a vector
};

template <typename T>
T combined(Operation operation, T old, T value, T swap) {
  switch (operation) {
    case Operation::add:
      if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(static_cast<U>(old) + static_cast<U>(value)));
      } else {
        return old + value;
      }
    case Operation::min: return std::min(old, value);
    case Operation::max: return std::max(old, value);
    case Operation::exchange: return value;
    case Operation::compare: return old == value ? swap : old;
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (operation) {
      case Operation::bit_and: return static_cast<T>(old & value);
      case Operation::bit_or: return static_cast<T>(old | value);
      case Operation::bit_xor: return static_cast<T>(old ^ value);
      case Operation::inc: return old >= value ? T{0} : static_cast<T>(old + 1);
      case Operation::dec: return old == 0 || old > value ? value : static_cast<T>(old - 1);
      default: break;
    }
  }
  return old;
}

struct Pair16 {};
struct PairBf16 {};

std::uint32_t added_halves(std::uint32_t a, std::uint32_t b, bool is_bfloat) {
  const auto add = [is_bfloat](std::uint32_t x, std::uint32_t y) -> std::uint32_t {
    const auto p = static_cast<std::uint16_t>(x);
    const auto q = static_cast<std::uint16_t>(y);
    return is_bfloat ? to_bfloat16(from_bfloat16(p) + from_bfloat16(q)) : to_float16(from_float16(p) + from_float16(q));
  };
  return add(a, b) | add(a >> 16, b >> 16) << 16;
}

/// Arguments: address, values, and for compare what is swapped in. Results: what was there, where that is wanted.
template <typename T, typename Kind = T>
Step atomic(Warp& warp, const Instruction& instruction, LaneMask lanes) {
  const auto how = std::bit_cast<Atomic>(instruction.detail);
  const auto operation = static_cast<Operation>(how.operation);
  const auto count = static_cast<int>(how.count);
  const std::size_t bytes = sizeof(T) * static_cast<std::size_t>(count);
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address =
        address_in(warp, instruction.argument(0), how.is_wide != 0, instruction.immediate, lane);
    std::byte* const at = locate(warp, static_cast<Space>(how.space), address, bytes, bytes, lane);
    for (int i = 0; i < count; ++i) {
      T old;
      std::memcpy(&old, at + sizeof(T) * static_cast<std::size_t>(i), sizeof(T));
      const T value = warp.in<T>(instruction.argument(1 + i))[lane];
      T kept;
      if constexpr (std::is_same_v<Kind, T>) {
        const T swap = operation == Operation::compare ? warp.in<T>(instruction.argument(2))[lane] : T{};
        kept = combined(operation, old, value, swap);
      } else {
        kept = added_halves(old, value, std::is_same_v<Kind, PairBf16>);
      }
      std::memcpy(at + sizeof(T) * static_cast<std::size_t>(i), &kept, sizeof(T));
      if (i < instruction.results) warp.out<T>(instruction.result(i))[lane] = old;
    }
  });
  warp.block().grid().note_progress();
  return instruction.results > 0 ? Step::yield : Step::next;
}

Operation operation_of(Decoder& decoder, const Statement& statement) {
  constexpr std::pair<std::string_view, Operation> kOperations[] = {
      {"add", Operation::add},    {"min", Operation::min},     {"max", Operation::max},
      {"inc", Operation::inc},    {"dec", Operation::dec},     {"and", Operation::bit_and},
      {"or", Operation::bit_or},  {"xor", Operation::bit_xor}, {"exch", Operation::exchange},
      {"cas", Operation::compare}};
  for (const auto& [name, operation] : kOperations) {
    if (statement.has(name)) return operation;
  }
  decoder.unsupported("an unknown operation");
}

Handler handler_for(std::string_view type, Operation operation) {
  if (type == "f32") return atomic<float>;
  if (type == "f64") return atomic<double>;
  if (operation == Operation::add && type == "f16x2") return atomic<std::uint32_t, Pair16>;
  if (operation == Operation::add && type == "bf16x2") return atomic<std::uint32_t, PairBf16>;
  Handler handler = nullptr;
  with_integer(type, [&]<typename T>() { handler = atomic<T>; });
  return handler;
}

void decode_atomic(Decoder& decoder, const Statement& statement, bool returns) {
  if (statement.has("async")) decoder.unsupported("red.async");
  const std::string_view type = statement.opcode.back();
  const int bits = type_bits(type);
  const Operation operation = operation_of(decoder, statement);
  const Handler handler = handler_for(type, operation);
  if (handler == nullptr) decoder.unsupported("an unknown type");
  const std::size_t first = returns ? 1 : 0;
  const AddressOperand address = decode_address(decoder, statement.operands[first]);
  const SourceOperand& value = statement.operands[first + 1];
  const bool is_vector = value.kind == SourceOperand::Kind::vector;
  const std::vector<SourceOperand> values = is_vector ? value.parts : std::vector<SourceOperand>{value};
  std::vector<Place> arguments = {address.base};
  for (const SourceOperand& each : values) arguments.push_back(decoder.in(each, bits));
  if (operation == Operation::compare) arguments.push_back(decoder.in(statement.operands[first + 2], bits));
  std::vector<Place> results;
  if (returns) {
    if (is_vector) decoder.unsupported("results of a vector");
    results.push_back(decoder.out(statement.operands[0], bits));
  }
  const Atomic how{.space = static_cast<std::uint32_t>(space_of(statement)),
                   .is_wide = address.is_wide ? 1U : 0U,
                   .operation = static_cast<std::uint32_t>(operation),
                   .count = static_cast<std::uint32_t>(values.size())};
  decoder.emit(handler, results, arguments, address.offset, std::bit_cast<std::uint32_t>(how));
}

}  // namespace

void add_atomic(DecodeTable& table) {
  table["atom"] = [](Decoder& decoder, const Statement& statement) { decode_atomic(decoder, statement, true); };
  table["red"] = [](Decoder& decoder, const Statement& statement) { decode_atomic(decoder, statement, false); };
}

}  // namespace strobe::emulator
