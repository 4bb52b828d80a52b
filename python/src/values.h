// SPDX-License-Identifier: Apache-2.0
// Plain values of Python as numbers and text. NumPy's scalars, and every other type's that convert, count as Python's
// own; each error names the argument.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

namespace strobe::python {

/// A value and the argument that it came by.
struct Given {
  const char* name;
  nanobind::handle value;
};

/// TypeError for what is no integer, as a bool is none; ValueError beyond 64 bits.
std::int64_t integer(const Given& given);

/// The same from 0 to 2^64 - 1.
std::uint64_t unsigned_integer(const Given& given);

/// An integer that fits 32 bits.
int short_integer(const Given& given);

/// TypeError for what is no number, as a bool is none.
double number(const Given& given);

/// Rounded to float32; ValueError for a finite number beyond its range.
float float32_number(const Given& given);

/// True or False, of NumPy and other array libraries too.
bool boolean(const Given& given);

/// Whether boolean() takes it.
bool is_boolean(nanobind::handle value);

/// TypeError for what is no str: it must be `accepted`. Lives as long as the str.
std::string_view string(const Given& given, const char* accepted);

}  // namespace strobe::python
