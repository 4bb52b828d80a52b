# SPDX-License-Identifier: Apache-2.0
# Debian's cross compiler for 64-bit ARM, with the arm64 packages that scripts/install-arm-dependencies.sh installs
# beside the machine's own. Programs run under qemu-user; QEMU_CPU in the environment chooses the processor.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
# Debian keeps each architecture's libraries in a folder of its own, which CMake knows from the compiler.
