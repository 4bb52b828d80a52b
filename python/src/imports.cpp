// SPDX-License-Identifier: Apache-2.0
#include "imports.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "dense_strides.h"
#include "errors.h"
#include "exchange_api.h"
#include "values.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

namespace dlpack = nb::dlpack;

struct NamedDType {
  std::string_view name;
  DType dtype;
  dlpack::dtype dlpack;
};

constexpr dlpack::dtype dtype_of(dlpack::dtype_code code, std::uint8_t bits) {
  return {static_cast<std::uint8_t>(code), bits, 1};
}

// A bool is a byte of 0 or 1, which is what a block mask holds.
constexpr NamedDType kDTypes[] = {
    {"float32", DType::float32, dtype_of(dlpack::dtype_code::Float, 32)},
    {"float16", DType::float16, dtype_of(dlpack::dtype_code::Float, 16)},
    {"bfloat16", DType::bfloat16, dtype_of(dlpack::dtype_code::Bfloat, 16)},
    {"int32", DType::int32, dtype_of(dlpack::dtype_code::Int, 32)},
    {"int64", DType::int64, dtype_of(dlpack::dtype_code::Int, 64)},
    {"int8", DType::int8, dtype_of(dlpack::dtype_code::Int, 8)},
    {"uint8", DType::uint8, dtype_of(dlpack::dtype_code::UInt, 8)},
    {"bool", DType::uint8, dtype_of(dlpack::dtype_code::Bool, 8)},
    {"float8_e4m3fn", DType::float8_e4m3, dtype_of(dlpack::dtype_code::Float8_E4M3FN, 8)},
};

std::string text_of(const dlpack::dtype& dtype) {
  constexpr std::string_view kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const bool known = dtype.code < std::size(kCodes);
  return known ? fmt::format("{}{}", kCodes[dtype.code], dtype.bits)
               : fmt::format("a DLPack dtype of code {} and {} bits", dtype.code, dtype.bits);
}

[[noreturn]] void raise_dtype(const Role& role, std::string_view given) {
  raise(PyExc_ValueError, "{} is {}: it must be {}", role.name, given, role.dtypes);
}

/// A bool is a byte, which only tensors of bytes may hold.
DType checked(const NamedDType& dtype, const Role& role) {
  const std::string_view accepted = role.dtypes == nullptr ? "uint8" : role.dtypes;
  if (dtype.name == "bool" && accepted.find("uint8") == std::string_view::npos) {
    raise(PyExc_ValueError, "{} is bool: it must be {}{}", role.name, accepted,
          std::string_view(role.name) == "bias" ? "; give mask, of which True is a visible key" : "");
  }
  return dtype.dtype;
}

[[noreturn]] void raise_read_only(const Role& role) {
  raise(PyExc_ValueError, "{} is read-only: it must be writable", role.name);
}

[[noreturn]] void raise_rank(const Role& role, std::int64_t rank) {
  raise(PyExc_ValueError, "{} has rank {}: tensors of a call have rank 1 to {}", role.name, rank, kMaxRank);
}

Device device_of(std::int32_t kind, std::int32_t index, const Role& role) {
  switch (static_cast<DeviceKind>(kind)) {
    case DeviceKind::cpu:
    case DeviceKind::cuda_host: return {DeviceType::cpu, 0};
    case DeviceKind::cuda:
    case DeviceKind::cuda_managed: return {DeviceType::cuda, index};
  }
  raise(PyExc_ValueError, "{} is on a device of DLPack type {}: it must be on the cpu or on a CUDA device", role.name,
        kind);
}

[[noreturn]] void raise_no_tensor(nb::handle object, const Role& role) {
  const bool are_lengths = PyList_Check(object.ptr()) != 0 && std::string_view(role.dtypes) == "int32";
  raise(PyExc_TypeError, "{} is of type {}: it must be a tensor that speaks DLPack, of NumPy, PyTorch, JAX or CuPy{}",
        role.name, nb::type_name(object.type()).c_str(),
        are_lengths ? ", as torch.tensor(.., dtype=torch.int32) or numpy.array(.., numpy.int32) makes it" : "");
}

/// Some frameworks give a tensor without elements strides of 0.
void make_dense(TensorView& view, const Role& role) {
  if (set_dense_strides(view)) return;
  raise(PyExc_ValueError, "{} has shape [{}]: it must span at most 2^48 elements of memory", role.name,
        fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "));
}

bool empty(const TensorView& view) {
  return std::ranges::count(view.shape.begin(), view.shape.begin() + view.rank, 0) > 0;
}

/// Whether a tensor of that rank is one element, where the role takes such tensors.
bool is_scalar(std::size_t rank, const Role& role) {
  if (role.scalar == nullptr) return false;
  *role.scalar = rank == 0;
  return rank == 0;
}

TensorView view_of(const dlpack::dltensor& tensor, const Role& role) {
  const bool scalar = is_scalar(static_cast<std::size_t>(tensor.ndim), role);
  if ((tensor.ndim < 1 && !scalar) || tensor.ndim > kMaxRank) raise_rank(role, tensor.ndim);
  if (tensor.shape == nullptr && !scalar) raise(PyExc_ValueError, "{} comes without a shape through DLPack", role.name);
  const auto* dtype = std::ranges::find(kDTypes, tensor.dtype, &NamedDType::dlpack);
  if (dtype == std::end(kDTypes)) raise_dtype(role, text_of(tensor.dtype));
  TensorView view;
  view.data = tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.dtype = checked(*dtype, role);
  view.device = device_of(tensor.device.device_type, tensor.device.device_id, role);
  if (scalar) {
    view.rank = 1;
    view.shape[0] = view.strides[0] = 1;
    return view;
  }
  view.rank = tensor.ndim;
  std::copy_n(tensor.shape, tensor.ndim, view.shape.begin());
  if (tensor.strides == nullptr || empty(view)) {
    make_dense(view, role);
  } else {
    std::copy_n(tensor.strides, tensor.ndim, view.strides.begin());
  }
  return view;
}

constexpr std::uint64_t kReadOnly = 1;

/// A capsule that nobody takes over frees its tensor itself: holding it is borrowing.
TensorView view_of_capsule(nb::handle capsule, const Role& role) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto& versioned = *static_cast<VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (versioned.major != 1) {
      raise(PyExc_ValueError, "{} speaks DLPack {}.{}: versions 0 and 1 are known here", role.name, versioned.major,
            versioned.minor);
    }
    if (role.written && (versioned.flags & kReadOnly) != 0) raise_read_only(role);
    return view_of(versioned.tensor, role);
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor") == 0) {
    raise(PyExc_TypeError, "{}.__dlpack__() gave no DLPack capsule", role.name);
  }
  return view_of(*static_cast<dlpack::dltensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor")), role);
}

/// PyTorch's own words for devices and layouts that DLPack does not have are a page of C++.
void check_device_and_layout(nb::handle tensor, const Role& role) {
  const std::string layout = nb::str(nb::getattr(tensor, "layout", nb::str("torch.strided"))).c_str();
  if (layout != "torch.strided") {
    raise(PyExc_ValueError, "{} has the layout {}: it must be dense, torch.strided", role.name, layout);
  }
  const std::string device = nb::str(nb::getattr(tensor, "device", nb::str("cpu"))).c_str();
  if (device.starts_with("cpu") || device.starts_with("cuda")) return;
  raise(PyExc_ValueError, "{} is on {}: it must be on the cpu or on a CUDA device", role.name, device);
}

/// What the package needs of NumPy, for as long as the process lives.
struct NumPy {
  nb::object array_type;
  nb::object masked_array_type;
  nb::object asarray;

  static const NumPy& get() {
    static const NumPy& numpy =
        *new NumPy{nb::module_::import_("numpy").attr("ndarray"), nb::module_::import_("numpy.ma").attr("MaskedArray"),
                   nb::module_::import_("numpy").attr("asarray")};
    return numpy;
  }
};

/// numpy.asarray of something that is no plain array, without a copy. NumPy checks whatever it says of itself.
nb::object plain_array(nb::handle object, const Role& role) {
  const NumPy& numpy = NumPy::get();
  if (nb::isinstance(object, numpy.masked_array_type)) {
    raise(PyExc_TypeError, "{} is a masked array, whose mask no call reads: give {}.filled(...), or its data",
          role.name, role.name);
  }
  nb::object array;
  try {
    array = numpy.asarray(object);
  } catch (const nb::python_error& error) {
    const bool malformed = error.matches(PyExc_TypeError) || error.matches(PyExc_ValueError) ||
                           error.matches(PyExc_OverflowError) || error.matches(PyExc_KeyError);
    if (!malformed) throw;
    raise(PyExc_TypeError, "{} has a malformed __array_interface__: {}", role.name, nb::str(error.value()).c_str());
  }
  const bool copied = nb::cast<bool>(array.attr("flags").attr("owndata"));  // a scalar
  if ((copied && role.written) || nb::cast<bool>(array.attr("dtype").attr("hasobject"))) raise_no_tensor(object, role);
  return array;
}

/// What an object says of its device: (type, index).
std::pair<int, int> dlpack_device(nb::handle object, const Role& role) {
  if (!nb::hasattr(object, "__dlpack_device__")) {
    raise(PyExc_TypeError, "{} has __dlpack__ without __dlpack_device__", role.name);
  }
  const nb::object device = object.attr("__dlpack_device__")();
  const std::string name = fmt::format("{}.__dlpack_device__()", role.name);
  if (PyTuple_Check(device.ptr()) == 0 || PyTuple_Size(device.ptr()) != 2) {
    raise(PyExc_TypeError, "{} is {}: it must be a tuple (type, index)", name, nb::repr(device).c_str());
  }
  return {short_integer({name.c_str(), device[0]}), short_integer({name.c_str(), device[1]})};
}

/// NumPy's own dtype names; a dtype of another byte order has the same.
DType dtype_of_array(nb::handle array, const Role& role) {
  const nb::object dtype = array.attr("dtype");
  if (!nb::cast<bool>(dtype.attr("isnative"))) {
    raise(PyExc_ValueError, "{} is in the byte order of another machine: it must be in this one's", role.name);
  }
  return dtype_named(nb::str(dtype.attr("name")).c_str(), role);
}

}  // namespace

DType dtype_named(std::string_view name, const Role& role) {
  const auto* dtype = std::ranges::find(kDTypes, name, &NamedDType::name);
  if (dtype == std::end(kDTypes)) raise_dtype(role, name);
  return checked(*dtype, role);
}

TensorView view_of(const NamedShape& shape, const Role& role) {
  return view_of(TensorShape{shape.shape, dtype_named(shape.dtype, role), shape.device}, role);
}

TensorView view_of(const TensorShape& shape, const Role& role) {
  if (is_scalar(shape.shape.size(), role)) return view_of(TensorShape{{1}, shape.dtype, shape.device}, {role.name});
  if (shape.shape.empty() || shape.shape.size() > kMaxRank) {
    raise_rank(role, static_cast<std::int64_t>(shape.shape.size()));
  }
  TensorView view;
  view.dtype = shape.dtype;
  view.device = shape.device;
  view.rank = static_cast<int>(shape.shape.size());
  std::ranges::copy(shape.shape, view.shape.begin());
  make_dense(view, role);
  return view;
}

TensorView Imports::view(nb::handle object, const Role& role) {
  if (object.is_none()) return {};
  if (exchange_api_of(object) != nullptr) return from_exchange_api(object, role);
  if (nb::isinstance<NamedShape>(object)) return view_of(*nb::cast<NamedShape*>(object), role);
  if (object.type().is(NumPy::get().array_type)) return from_array(object, role);
  if (nb::hasattr(object, "__array_interface__")) {
    held_.push_back(plain_array(object, role));
    return from_array(held_.back(), role);
  }
  if (nb::hasattr(object, "__dlpack__")) return from_dlpack(object, role);
  raise_no_tensor(object, role);
}

TensorView Imports::from_exchange_api(nb::handle object, const Role& role) {
  const ExchangeApi& api = *exchange_api_of(object);
  dlpack::dltensor tensor;
  if (api.tensor_from_object(object.ptr(), &tensor) != 0) {
    nb::python_error error;
    check_device_and_layout(object, role);
    error.restore();
    nb::raise_python_error();
  }
  const TensorView view = view_of(tensor, role);
  if (view.device.type == DeviceType::cuda && !has_stream_) {
    if (api.current_stream(tensor.device.device_type, tensor.device.device_id, &stream_) != 0) {
      throw nb::python_error();
    }
    has_stream_ = true;
    allocator_ = &api;
    allocator_device_ = tensor.device;
  }
  return view;
}

Imports::~Imports() {
  if (memory_ != nullptr && memory_->deleter != nullptr) memory_->deleter(memory_);
}

void* Imports::allocate(std::size_t bytes) {
  if (allocator_ == nullptr || allocator_->allocate == nullptr || memory_ != nullptr) return nullptr;
  auto extent = static_cast<std::int64_t>(bytes);
  dlpack::dltensor prototype{};
  prototype.device = allocator_device_;
  prototype.ndim = 1;
  prototype.dtype = dtype_of(dlpack::dtype_code::UInt, 8);
  prototype.shape = &extent;
  const auto ignore = [](void*, const char*, const char*) {};
  if (allocator_->allocate(&prototype, &memory_, nullptr, ignore) != 0 || memory_ == nullptr) return nullptr;
  return static_cast<char*>(memory_->tensor.data) + memory_->tensor.byte_offset;
}

/// NumPy's own interface: unlike DLPack it knows bfloat16 (of ml_dtypes), and says what is wrong with the rest.
TensorView Imports::from_array(nb::handle array, const Role& role) {
  const nb::dict interface = array.attr("__array_interface__");
  TensorShape shape{.dtype = dtype_of_array(array, role)};
  for (const nb::handle extent : nb::tuple(interface["shape"])) shape.shape.push_back(nb::cast<std::int64_t>(extent));
  TensorView view = view_of(shape, role);
  const nb::tuple data = interface["data"];
  view.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0]));
  if (role.written && nb::cast<bool>(data[1])) raise_read_only(role);
  if (empty(view)) return view;
  const nb::tuple strides(array.attr("strides"));  // in bytes
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::size_t axis = 0; axis < shape.shape.size(); ++axis) {
    const auto bytes = nb::cast<std::int64_t>(strides[axis]);
    if (bytes % size != 0) {
      raise(PyExc_ValueError, "{} has a stride of {} bytes on axis {}: it must be a multiple of its {}-byte elements",
            role.name, bytes, axis, size);
    }
    view.strides[axis] = bytes / size;
  }
  return view;
}

TensorView Imports::from_dlpack(nb::handle object, const Role& role) {
  held_.push_back(dlpack_capsule(object, role));
  return view_of_capsule(held_.back(), role);
}

nb::object Imports::dlpack_capsule(nb::handle object, const Role& role) {
  const bool on_cuda = dlpack_device(object, role).first == static_cast<int>(DeviceKind::cuda);
  // The producer makes this stream wait for its own work; 1 is DLPack's name for CUDA's default stream.
  constexpr std::uintptr_t kDefaultStream = 1;
  nb::dict keywords;
  if (on_cuda) {
    has_stream_ = true;
    keywords["stream"] = stream_ == nullptr ? kDefaultStream : reinterpret_cast<std::uintptr_t>(stream_);
  }
  const nb::object dlpack = object.attr("__dlpack__");
  try {
    return dlpack(nb::arg("max_version") = nb::make_tuple(1, 0), **keywords);
  } catch (const nb::python_error& error) {  // a producer from before DLPack 1 does not know versions
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return dlpack(**keywords);
}

}  // namespace strobe::python
