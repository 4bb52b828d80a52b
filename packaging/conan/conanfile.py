# SPDX-License-Identifier: Apache-2.0
"""Strobe as a Conan 2 package, built from the source archive that conandata.yml names."""

from pathlib import Path
from typing import ClassVar

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd, stdcpp_library
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.0"

# Strobe's builds ask for these packages and targets, whatever the dependency's own recipe calls them.
CMAKE_NAMES = {"highway": ("hwy", "hwy::hwy"), "onetbb": ("TBB", "TBB::tbb"), "fmt": ("fmt", "fmt::fmt")}


class Strobe(ConanFile):
    name = "strobe"
    description = "Exact attention, forward and backward, without the N x N matrix, on CPUs and NVIDIA GPUs"
    license = "Apache-2.0"
    topics = ("attention", "flash-attention", "transformer", "deep-learning", "cuda")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options: ClassVar = {"shared": [True, False], "fPIC": [True, False], "gpu": [True, False]}
    default_options: ClassVar = {"shared": False, "fPIC": True, "gpu": False}

    def configure(self):
        if self.options.shared:
            self.options.rm_safe("fPIC")

    def layout(self):
        cmake_layout(self, src_folder="source")

    def requirements(self):
        self.requires("highway/[>=1.0.3 <2]")
        self.requires("onetbb/[>=2021.8]")
        self.requires("fmt/[>=9]")
        self.requires("libmd/[>=1.0.4 <2]")
        if self.options.gpu:  # the tool that compiles the kernels reads and writes JSON
            self.requires("nlohmann_json/[>=3.11 <4]", visible=False)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration(f"Strobe is for Linux: os is {self.settings.os}")
        if self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration(f"Strobe is for x86_64 and armv8: arch is {self.settings.arch}")
        check_min_cppstd(self, 20)

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TOOLS", "EXAMPLES", "TESTS", "PYTHON"):
            toolchain.cache_variables[f"STROBE_BUILD_{part}"] = False
        # With GPU kernels the build needs a CUDA toolkit from 12.9 on, or fetches NVIDIA's compiler from PyPI.
        toolchain.cache_variables["STROBE_GPU"] = "ON" if self.options.gpu else "OFF"
        toolchain.generate()
        dependencies = CMakeDeps(self)
        for package, (file, target) in CMAKE_NAMES.items():
            dependencies.set_property(package, "cmake_file_name", file)
            dependencies.set_property(package, "cmake_target_name", target)
        dependencies.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="strobe")

    def package(self):
        CMake(self).install()
        for name in ("LICENSE", "python/THIRD_PARTY_NOTICES"):
            copy(self, Path(name).name, Path(self.source_folder, name).parent, Path(self.package_folder, "licenses"))
        for folder in ("cmake", "pkgconfig"):  # Conan writes its own
            rmdir(self, Path(self.package_folder, "lib", folder))
        rmdir(self, Path(self.package_folder, "share"))

    def package_info(self):
        self.cpp_info.libs = ["strobe"]
        self.cpp_info.set_property("cmake_file_name", "strobe")
        self.cpp_info.set_property("cmake_target_name", "strobe::strobe")
        self.cpp_info.set_property("pkg_config_name", "strobe")
        if not self.options.shared:
            # A C program links the C++ standard library, too.
            self.cpp_info.system_libs = [name for name in ("dl", "m", "pthread", stdcpp_library(self)) if name]
