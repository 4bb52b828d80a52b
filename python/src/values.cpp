// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "errors.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

[[noreturn]] void raise_type(const Given& given, const char* accepted) {
  raise(PyExc_TypeError, "{} is of type {}: it must be {}", given.name, nb::type_name(given.value.type()).c_str(),
        accepted);
}

/// As an int of Python's.
nb::object index_of(const Given& given) {
  nb::object index;
  if (!is_boolean(given.value)) index = nb::steal(PyNumber_Index(given.value.ptr()));
  if (index.is_valid()) return index;
  PyErr_Clear();
  raise_type(given, "an integer");
}

/// A number's digits, or how large it is where Python does not print it.
std::string digits(const nb::object& index) {
  const nb::object text = nb::steal(PyObject_Str(index.ptr()));
  if (text.is_valid()) return nb::borrow<nb::str>(text).c_str();
  PyErr_Clear();
  return "a number of thousands of digits";
}

}  // namespace

std::int64_t integer(const Given& given) {
  const nb::object index = index_of(given);
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) raise(PyExc_ValueError, "{} is {}: it must fit 64 bits", given.name, digits(index));
  return value;
}

std::uint64_t unsigned_integer(const Given& given) {
  const nb::object index = index_of(given);
  const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise(PyExc_ValueError, "{} is {}: it must be from 0 to 2^64 - 1", given.name, digits(index));
  }
  return value;
}

int short_integer(const Given& given) {
  const std::int64_t value = integer(given);
  const auto fits = static_cast<int>(value);
  if (fits != value) raise(PyExc_ValueError, "{} is {}: it must fit 32 bits", given.name, value);
  return fits;
}

double number(const Given& given) {
  if (is_boolean(given.value)) raise_type(given, "a number");
  const double value = PyFloat_AsDouble(given.value.ptr());
  if (PyErr_Occurred() == nullptr) return value;
  const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
  PyErr_Clear();
  if (too_large) raise(PyExc_ValueError, "{} is beyond the range of floating-point numbers", given.name);
  raise_type(given, "a number");
}

float float32_number(const Given& given) {
  const double value = number(given);
  if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) {
    raise(PyExc_ValueError, "{} is {}: it must be in the range of float32", given.name, value);
  }
  return static_cast<float>(value);
}

bool is_boolean(nb::handle value) {
  if (PyBool_Check(value.ptr())) return true;
  if (PyLong_CheckExact(value.ptr()) || PyFloat_CheckExact(value.ptr()) || PyUnicode_Check(value.ptr())) return false;
  const nb::object dtype = nb::getattr(value, "dtype", nb::none());
  const nb::object rank = nb::getattr(value, "ndim", nb::none());
  if (dtype.is_none() || !PyLong_CheckExact(rank.ptr()) || PyLong_AsLong(rank.ptr()) != 0) return false;
  const std::string_view name = nb::str(dtype).c_str();
  return name == "bool" || name == "torch.bool";
}

bool boolean(const Given& given) {
  if (!is_boolean(given.value)) raise_type(given, "True or False");
  const int value = PyObject_IsTrue(given.value.ptr());
  if (value < 0) throw nb::python_error();
  return value != 0;
}

std::string_view string(const Given& given, const char* accepted) {
  if (!PyUnicode_Check(given.value.ptr())) raise_type(given, accepted);
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(given.value.ptr(), &size);
  if (text == nullptr) throw nb::python_error();
  return {text, static_cast<std::size_t>(size)};
}

}  // namespace strobe::python
