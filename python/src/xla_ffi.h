// SPDX-License-Identifier: Apache-2.0
// The part of XLA's foreign-function interface, the C ABI by which JAX calls libraries, that Strobe needs; declared
// here so that no JAX is needed to build. Every struct begins with its size and grows at its end alone.
//
// Source: OpenXLA, xla/ffi/api/c_api.h, version 0.3.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strobe::python::xla {

enum class ExtensionKind : int { metadata = 1 };

struct Extension {
  std::size_t struct_size;
  ExtensionKind kind;
  Extension* next;
};

/// What every struct but the plainest begins with.
struct Header {
  std::size_t struct_size;
  Extension* extensions;
};

struct ApiVersion {
  Header header;
  int major;
  int minor;
};
inline constexpr int kMajorVersion = 0;

enum class ErrorCode : int { invalid_argument = 3, resource_exhausted = 8, unimplemented = 12, internal = 13 };

struct Error;
struct ErrorArguments {
  Header header;
  const char* message;
  ErrorCode code;
};

struct ExecutionContext;
struct StreamArguments {
  Header header;
  ExecutionContext* context;
  void* stream;  // out
};
struct DeviceOrdinalArguments {
  Header header;
  ExecutionContext* context;
  std::int32_t ordinal;  // out
};

struct AllocateArguments {
  Header header;
  ExecutionContext* context;
  std::size_t bytes;
  std::size_t alignment;
  void* data;  // out
};
struct FreeArguments {
  Header header;
  ExecutionContext* context;
  std::size_t bytes;
  void* data;
};

struct Api {
  Header header;
  ApiVersion version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
  void (*error_message)(void*);
  void (*destroy_error)(void*);
  void* register_handler;
  Error* (*stream)(StreamArguments*);
  void* types_and_state[4];
  Error* (*allocate)(AllocateArguments*);
  Error* (*free)(FreeArguments*);
  void* others[6];  // threads, futures, run id
  Error* (*device_ordinal)(DeviceOrdinalArguments*);
};

enum class DataType : int {
  pred = 1,
  s8 = 2,
  s32 = 4,
  s64 = 5,
  u8 = 6,
  u32 = 8,
  f16 = 10,
  f32 = 11,
  bf16 = 16,
  f8e4m3fn = 20
};

struct Buffer {
  Header header;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* extents;
};

/// Operands, or results.
struct Buffers {
  Header header;
  std::int64_t count;
  int* kinds;  // 1: a buffer
  Buffer** buffers;
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

enum class AttributeKind : int { array = 1, dictionary = 2, scalar = 3, string = 4 };

struct Attributes {
  Header header;
  std::int64_t count;
  AttributeKind* kinds;
  ByteSpan** names;
  void** values;  // Scalar* or ByteSpan*, by kind
};

enum class Stage : int { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };

struct CallFrame {
  Header header;
  const Api* api;
  ExecutionContext* context;
  Stage stage;
  Buffers operands;
  Buffers results;
  Attributes attributes;
};

struct Metadata {
  std::size_t struct_size;
  ApiVersion version;
  std::uint32_t traits;
};
inline constexpr std::uint32_t kCommandBufferCompatible = 1;  // a call launches the same work every time

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

}  // namespace strobe::python::xla
