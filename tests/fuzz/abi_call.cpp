// SPDX-License-Identifier: Apache-2.0
#include "abi_call.h"

#include <algorithm>
#include <limits>
#include <new>

#include "api/c_tensors.h"

namespace strobe::fuzz {
namespace {

constexpr std::size_t kMostElements = 2048;  // of a tensor: seqlen_q * seqlen_k stays below 2^22
constexpr std::size_t kMostBytes = 1 << 16;
constexpr std::size_t kMostWorkspace = 1 << 20;
constexpr std::align_val_t kWorkspaceAlignment{64};
constexpr std::int32_t kMostThreads = 8;

strobe_tensor floats(std::initializer_list<std::int64_t> shape) {
  strobe_tensor tensor{};
  tensor.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  std::int64_t stride = 1;
  for (std::int32_t axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
  return tensor;
}

template <class Arguments>
EditedCall<Arguments> valid_call() {
  EditedCall<Arguments> call{};
  Arguments& arguments = call.arguments;
  arguments.struct_size = sizeof(arguments);
  arguments.q = floats({1, 3, 2, 4});
  arguments.k = floats({1, 4, 1, 4});
  arguments.v = arguments.k;
  arguments.o = arguments.q;
  arguments.lse = floats({1, 2, 3});
  Setting& setting = call.setting;
  setting.options.struct_size = sizeof(setting.options);
  setting.execution.struct_size = sizeof(setting.execution);
  setting.execution.threads = 1;
  setting.capture = floats({2});
  setting.d_capture = setting.capture;
  setting.lengths = {{{0, 3}, {0, 4}, {2}, {3}}};
  setting.content = {0, 0, 0x80, 0x3F, 0, 0, 0x20, 0xBF, 0, 0, 0x40, 0x3E, 0, 0, 0xC0, 0xBF};
  return call;
}

/// The bytes that a view spans; nothing when it is malformed or larger than a fuzz target should compute with.
bool spanned_bytes(const strobe_tensor& tensor, std::size_t& bytes) {
  constexpr std::size_t kElementBytes[] = {4, 2, 2, 4, 1, 1, 1};
  if (tensor.rank < 1 || tensor.rank > STROBE_MAX_RANK || tensor.dtype < 0 || tensor.dtype > STROBE_INT8) return false;
  std::size_t elements = 1;
  std::size_t span = 1;
  bool empty = false;
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    const std::int64_t extent = tensor.shape[axis];
    const std::int64_t stride = tensor.strides[axis];
    empty = empty || extent == 0;
    if (extent < 0 || static_cast<std::size_t>(extent) > kMostElements) return false;
    elements *= static_cast<std::size_t>(std::max<std::int64_t>(extent, 1));
    if (elements > kMostElements) return false;
    if (extent <= 1) continue;
    if (stride < 0 || static_cast<std::size_t>(stride) > kMostBytes) return false;
    span += static_cast<std::size_t>((extent - 1) * stride);
  }
  bytes = empty ? 0 : span * kElementBytes[tensor.dtype];
  return bytes <= kMostBytes;
}

void run_in_turn(void*, std::int32_t count, void (*body)(void*, std::int32_t), void* body_context) {
  for (std::int32_t index = 0; index < count; ++index) body(body_context, index);
}

void* allocate_nothing(void*, std::size_t) { return nullptr; }

/// The edits' bytes in order, zeros after the last.
class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }

  template <class T>
  T take() {
    T value{};
    const std::size_t count = std::min(sizeof(value), rest_.size());
    if (count > 0) std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

std::int64_t edge_value(std::uint8_t number) {
  constexpr std::int64_t kEdges[] = {std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max(),
                                     std::numeric_limits<std::int32_t>::min(),
                                     std::numeric_limits<std::int32_t>::max(),
                                     -1,
                                     1LL << 16,
                                     1LL << 32,
                                     1LL << 48,
                                     0x7F800000,   // infinity, as a float
                                     0x7FC00000};  // NaN
  return kEdges[number % std::size(kEdges)];
}

/// Without those of strobe_sequences, whose content is Setting::lengths.
template <class Arguments, class Struct>
std::vector<strobe_tensor*> tensors_of(Struct& arguments, bool outputs) {
  std::vector<strobe_tensor*> tensors;
  for (const api::CTensor& one : api::kCTensors<Struct>) {
    const bool is_output = find_tensor<Arguments>(one.name)->role == TensorRole::output;
    const bool is_length = std::ranges::find(api::kCTensors<strobe_sequences>, one.name, &api::CTensor::name) !=
                           api::kCTensors<strobe_sequences>.end();
    if (is_output != outputs || is_length) continue;
    tensors.push_back(reinterpret_cast<strobe_tensor*>(reinterpret_cast<std::byte*>(&arguments) + one.offset));
  }
  return tensors;
}

/// A byte as a number from -128 to 127.
std::int64_t near_zero(std::uint8_t byte) { return byte < 128 ? byte : byte - 256; }

}  // namespace

EditedCall<strobe_forward_arguments> valid_forward() { return valid_call<strobe_forward_arguments>(); }

EditedCall<strobe_backward_arguments> valid_backward() {
  EditedCall<strobe_backward_arguments> call = valid_call<strobe_backward_arguments>();
  strobe_backward_arguments& arguments = call.arguments;
  arguments.d_o = arguments.o;
  arguments.dq = arguments.q;
  arguments.dk = arguments.k;
  arguments.dv = arguments.v;
  return call;
}

void apply_edits(std::span<std::byte> call, std::span<const std::uint8_t> edits) {
  Reader reader(edits);
  const std::size_t words = call.size() / sizeof(std::uint32_t);
  const auto word_at = [&](std::size_t word) { return call.data() + word % words * sizeof(std::uint32_t); };
  while (!reader.empty()) {
    const auto word = reader.take<std::uint16_t>();
    std::int64_t value = 0;
    std::size_t bytes = sizeof(std::uint32_t);
    switch (reader.take<std::uint8_t>() % 6) {
      case 0: value = near_zero(reader.take<std::uint8_t>()); break;
      case 1: value = near_zero(reader.take<std::uint8_t>()), bytes = sizeof(value); break;
      case 2: value = reader.take<std::int32_t>(); break;
      case 3: value = reader.take<std::int64_t>(), bytes = sizeof(value); break;
      case 4: value = edge_value(reader.take<std::uint8_t>()), bytes = sizeof(value); break;
      default: std::memcpy(&value, word_at(reader.take<std::uint16_t>()), bytes); break;
    }
    std::byte* const at = word_at(word);
    const auto room = static_cast<std::size_t>(call.data() + call.size() - at);
    std::memcpy(at, &value, std::min(bytes, room));
  }
}

std::vector<strobe_tensor*> inputs_of(strobe_forward_arguments& a) { return tensors_of<ForwardArguments>(a, false); }
std::vector<strobe_tensor*> inputs_of(strobe_backward_arguments& a) { return tensors_of<BackwardArguments>(a, false); }
std::vector<strobe_tensor*> outputs_of(strobe_forward_arguments& a) { return tensors_of<ForwardArguments>(a, true); }
std::vector<strobe_tensor*> outputs_of(strobe_backward_arguments& a) { return tensors_of<BackwardArguments>(a, true); }

strobe_sequences& sequences_of(strobe_forward_arguments& arguments) { return arguments.sequences; }
strobe_sequences& sequences_of(strobe_backward_arguments& arguments) { return arguments.sequences; }

bool TensorMemory::Piece::unchanged() const { return std::equal(before.begin(), before.end(), bytes.get()); }

bool TensorMemory::inputs_unchanged() const {
  return std::ranges::all_of(pieces_, [](const Piece& piece) { return piece.writable || piece.unchanged(); });
}

bool TensorMemory::unchanged() const { return std::ranges::all_of(pieces_, &Piece::unchanged); }

std::uint8_t* TensorMemory::add(std::size_t bytes, std::span<const std::uint8_t> content, bool writable) {
  Piece piece{std::make_unique<std::uint8_t[]>(bytes), std::vector<std::uint8_t>(bytes), writable};
  for (std::size_t i = 0; i < bytes; ++i) piece.before[i] = content[i % content.size()];
  std::copy_n(piece.before.begin(), bytes, piece.bytes.get());
  return pieces_.emplace_back(std::move(piece)).bytes.get();
}

void TensorMemory::place(strobe_tensor& tensor, std::span<const std::uint8_t> content, bool writable) {
  const std::uintptr_t choice = reinterpret_cast<std::uintptr_t>(tensor.data) % 4;
  std::size_t bytes = 0;
  tensor.data = nullptr;
  if (choice == 1 || tensor.device_type != STROBE_CPU || !spanned_bytes(tensor, bytes)) return;
  if (choice == 2) {
    if (shared_ == nullptr) shared_ = add(kMostBytes, content, true);
    tensor.data = shared_;
  } else {
    const std::size_t off = choice == 3 ? 1 : 0;
    tensor.data = add(bytes + off, content, writable) + off;
  }
}

StructMemory::StructMemory(const void* from, std::size_t bytes, std::size_t claimed) {
  // Larger claims are rejected by their size alone, smaller ones than the claim itself, too.
  const std::size_t held = claimed > kMostBytes ? bytes : std::max(claimed, sizeof(claimed));
  bytes_ = std::make_unique<std::byte[]>(held);
  std::memcpy(bytes_.get(), from, std::min(held, bytes));
}

void AlignedDelete::operator()(std::byte* memory) const { ::operator delete(memory, kWorkspaceAlignment); }

Workspace keep_promises(strobe_execution& execution) {
  if (execution.parallel_for != nullptr) execution.parallel_for = run_in_turn;
  if (execution.allocate_workspace != nullptr) execution.allocate_workspace = allocate_nothing;
  if (execution.kernels != nullptr) execution.kernels = "sm80";
  if (execution.threads > kMostThreads) execution.threads %= kMostThreads;
  if (execution.workspace == nullptr) return nullptr;
  execution.workspace_bytes = std::min(execution.workspace_bytes, kMostWorkspace);
  Workspace memory(static_cast<std::byte*>(::operator new(execution.workspace_bytes, kWorkspaceAlignment)));
  const bool misaligned = reinterpret_cast<std::uintptr_t>(execution.workspace) % 2 == 1;
  execution.workspace = memory.get() + (misaligned ? 1 : 0);
  return memory;
}

const std::uint64_t* readable_state(const std::uint64_t* given) {
  static const std::uint64_t state[3] = {1, 2, 3};
  if (given == nullptr) return nullptr;
  const std::size_t off = reinterpret_cast<std::uintptr_t>(given) % 2;
  return reinterpret_cast<const std::uint64_t*>(reinterpret_cast<const unsigned char*>(state) + off);
}

}  // namespace strobe::fuzz
