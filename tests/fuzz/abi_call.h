// SPDX-License-Identifier: Apache-2.0
// A call of the C ABI that any bytes can turn into any other: a small valid one, and edits to its structs' words.
//
// The library believes its caller in five things: a pointer leads to the memory that the view spans, struct_size bytes
// can be read, workspace_bytes can be written, the caller's pool runs what it is given, and a score function is one
// that was parsed, with an array of capture_count tensors. TensorMemory, StructMemory, keep_promises() and
// CaptureLists make these true whatever the edits were; everything else is left as edited.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "strobe/strobe.h"

namespace strobe::fuzz {

/// What edits reach, beside the call's arguments.
struct Setting {
  strobe_options options;
  strobe_execution execution;
  std::array<std::array<std::int32_t, 4>, 4> lengths;  // of cu_seqlens_q, cu_seqlens_k, seqused_q and seqused_k
  std::array<std::uint8_t, 16> content;                // what every other tensor holds, over and over
  std::uint32_t null_options;                          // an odd number: the pointer to it is null
  std::uint32_t null_execution;
  strobe_tensor capture;  // every element of the array that an edited pointer to captures becomes
  strobe_tensor d_capture;
};

template <class Arguments>
struct EditedCall {
  Arguments arguments;
  Setting setting;
};

/// q [1, 3, 2, 4], k and v [1, 4, 1, 4] in float32, with LSE and without options.
EditedCall<strobe_forward_arguments> valid_forward();
EditedCall<strobe_backward_arguments> valid_backward();

/// Edits: the number of a 4-byte word (2 bytes), what to write there (1 byte), and what that takes.
void apply_edits(std::span<std::byte> call, std::span<const std::uint8_t> edits);

std::vector<strobe_tensor*> inputs_of(strobe_forward_arguments& arguments);
std::vector<strobe_tensor*> inputs_of(strobe_backward_arguments& arguments);
std::vector<strobe_tensor*> outputs_of(strobe_forward_arguments& arguments);
std::vector<strobe_tensor*> outputs_of(strobe_backward_arguments& arguments);
strobe_sequences& sequences_of(strobe_forward_arguments& arguments);
strobe_sequences& sequences_of(strobe_backward_arguments& arguments);

/// Memory of exactly the bytes that a view spans, so that a sanitizer sees one byte too many. The edited pointer
/// chooses: 0 memory of its own, 1 null, 2 memory that tensors share, 3 its own, a byte off alignment. Views that are
/// malformed or large get null, as do those on a device.
class TensorMemory {
 public:
  /// Set tensor.data; `content` is what the memory holds, over and over. The memory lives as long as this.
  void place_input(strobe_tensor& tensor, std::span<const std::uint8_t> content) { place(tensor, content, false); }
  void place_output(strobe_tensor& tensor, std::span<const std::uint8_t> content) { place(tensor, content, true); }

  bool inputs_unchanged() const;
  bool unchanged() const;

 private:
  struct Piece {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::vector<std::uint8_t> before;
    bool writable = false;

    bool unchanged() const;
  };

  void place(strobe_tensor& tensor, std::span<const std::uint8_t> content, bool writable);
  std::uint8_t* add(std::size_t bytes, std::span<const std::uint8_t> content, bool writable);

  std::vector<Piece> pieces_;
  std::uint8_t* shared_ = nullptr;
};

/// A struct in memory of exactly the bytes that it claims, zeros beyond those of this version.
class StructMemory {
 public:
  template <class Struct>
  explicit StructMemory(const Struct& from) : StructMemory(&from, sizeof(from), from.struct_size) {}

  template <class Struct>
  const Struct* as() const {
    return reinterpret_cast<const Struct*>(bytes_.get());
  }

 private:
  StructMemory(const void* from, std::size_t bytes, std::size_t claimed);

  std::unique_ptr<std::byte[]> bytes_;
};

struct AlignedDelete {
  void operator()(std::byte* memory) const;
};
using Workspace = std::unique_ptr<std::byte, AlignedDelete>;

/// A workspace of exactly the size that is claimed, at most 1 MiB; a pool that runs; an allocator without memory; few
/// enough threads. Returns the workspace.
Workspace keep_promises(strobe_execution& execution);

/// Null stays null; else seed and offset in memory, at an odd address where the given one is odd.
const std::uint64_t* readable_state(const std::uint64_t* given);

}  // namespace strobe::fuzz
