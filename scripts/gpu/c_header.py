# SPDX-License-Identifier: Apache-2.0
"""ctypes structs read from a C header of plain structs and enums, include/strobe/strobe.h, so that they are nowhere
written a second time. What it does not understand is an error."""

import ctypes
import re

_SCALARS = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


class Header:
    """Structs and constants of the header's text, by their names in C: header.structs["strobe_tensor"]."""

    def __init__(self, text):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        self.constants = {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)$", text, re.MULTILINE)}
        for body in re.findall(r"typedef enum \w+ \{(.*?)\}", text, re.DOTALL):
            for enumerator in body.split(","):
                name, value = enumerator.split("=")
                self.constants[name.strip()] = int(value)
        self.structs = {}
        self._callbacks = set(re.findall(r"typedef [\w* ]+\(\*(\w+)\)", text))
        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.DOTALL):
            fields = [field for line in body.split(";") if line.strip() for field in self._fields(line)]
            self.structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})

    def _fields(self, declaration):
        """The fields of one declaration, such as "int64_t shape[STROBE_MAX_RANK]" or "strobe_tensor q, k, v"."""
        match = re.fullmatch(r"((?:const\s+)?\w+\s*\*|\w+)\s*(\w+(?:\s*,\s*\w+)*)(?:\[(\w+)\])?", declaration.strip())
        if not match:
            raise ValueError(f"a declaration of the C header is not understood: {declaration.strip()}")
        name, fields, extent = match.groups()
        ctype = ctypes.c_void_p if name.endswith("*") or name in self._callbacks else None
        ctype = ctypes.c_char_p if re.fullmatch(r"(?:const\s+)?char\s*\*", name) else ctype
        ctype = ctype or _SCALARS.get(name) or self.structs[name]
        if extent:
            ctype *= self.constants[extent]
        return [(field.strip(), ctype) for field in fields.split(",")]
