# SPDX-License-Identifier: Apache-2.0
"""Debian's own library as a Conan package of the name given: `make ports` tests the recipe with these."""

from conan import ConanFile

LIBRARIES = {"highway": "hwy", "onetbb": "tbb", "fmt": "fmt", "libmd": "md"}


class System(ConanFile):
    package_type = "shared-library"

    def package_info(self):
        self.cpp_info.includedirs = self.cpp_info.libdirs = self.cpp_info.bindirs = []
        self.cpp_info.system_libs = [LIBRARIES[self.name]]
