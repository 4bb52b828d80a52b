#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles one kernel with NVRTC, without a GPU: for reading registers, spills, warnings and SASS.

Usage: compile_kernel.py HEADER INSTANTIATION OUT.cubin [--arch sm_80] [--cuda build/cuda/nvidia/cu13]
       [--nvrtc build/cuda/nvidia/cuda_nvrtc/lib] [--option NVRTC_OPTION]...
HEADER is included as the kernels include each other; INSTANTIATION names the kernel with its template argument, as
"strobe::sm90::backward::joint_kernel<strobe::sm90::backward::Config{.block_m = 128}>". Prints the mangled name and
ptxas's report; exits with 1 on spills and on serialised WGMMAs.
"""

import argparse
import ctypes
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def compile_kernel(header, instantiation, cuda, more=(), architecture="sm_90a", libraries=None):
    """Returns (cubin, mangled name, log). `libraries`: the folder of another NVRTC than that of `cuda`."""
    libraries = libraries or cuda / "lib"
    ctypes.CDLL(next(libraries.glob("libnvrtc-builtins.so.*")), mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(next(libraries.glob("libnvrtc.so.*")))
    source = f'#include "{header}"\n'.encode()
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None) == 0
    assert nvrtc.nvrtcAddNameExpression(program, instantiation.encode()) == 0
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++20",
        "-default-device",
        "--ptxas-options=-v",
        f"-I{ROOT / 'src'}",
        f"-I{cuda / 'include'}",
        f"-I{cuda / 'include/cccl'}",
        *more,
    ]
    array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    result = nvrtc.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if result != 0:
        return None, None, log.value.decode()
    name = ctypes.c_char_p()
    assert nvrtc.nvrtcGetLoweredName(program, instantiation.encode(), ctypes.byref(name)) == 0
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin.raw, name.value.decode(), log.value.decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header")
    parser.add_argument("instantiation")
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--cuda", type=Path, default=ROOT / "build/cuda/nvidia/cu13")
    parser.add_argument("--nvrtc", type=Path, help="the folder of the NVRTC; by default that of --cuda")
    parser.add_argument("--option", action="append", default=[])
    arguments = parser.parse_args()
    cubin, name, log = compile_kernel(
        arguments.header, arguments.instantiation, arguments.cuda, arguments.option, arguments.arch, arguments.nvrtc
    )
    lines = [line for line in log.splitlines() if "gmem" not in line and line.strip()]
    print("\n".join(lines))
    if cubin is None:
        sys.exit(2)
    arguments.out.write_bytes(cubin)
    print(name)
    spilled = any(re.search(r"\b[1-9]\d* bytes spill", line) for line in lines)
    serialised = "C75" in log.replace("C7519", "")  # a fence that ptxas adds, which costs nothing
    sys.exit(1 if spilled or serialised else 0)


if __name__ == "__main__":
    main()
