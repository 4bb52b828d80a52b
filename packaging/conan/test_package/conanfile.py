# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the quickstart against the package."""

from pathlib import Path

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class Test(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "CMakeToolchain"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            for language in ("cpp", "c"):
                program = Path(self.build_folder, self.cpp.build.bindir, f"quickstart_{language}")
                self.run(str(program), env="conanrun")
