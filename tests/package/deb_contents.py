# SPDX-License-Identifier: Apache-2.0
"""Looks into the .deb packages: deb_contents.py FOLDER VERSION TRIPLET"""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER, VERSION, TRIPLET = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
SO = ".".join(VERSION.split(".")[:2])
LIB = f"usr/lib/{TRIPLET}"
LIBRARY, HEADERS, PROGRAM = f"libstrobe{SO}", "libstrobe-dev", "strobe"


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def package(name):
    (path,) = FOLDER.glob(f"{name}_{VERSION}_*.deb")
    return path


def field(name, key):
    return run("dpkg-deb", "--field", package(name), key).strip()


def contents(name):
    """{path: (mode, owner, size)} of everything but folders."""
    lines = [line.split(maxsplit=5) for line in run("dpkg-deb", "--contents", package(name)).splitlines()]
    entries = [(mode, owner, int(size), path) for mode, owner, size, _, _, path in lines]
    return {
        path.split(" -> ")[0].removeprefix("./"): (mode, owner, size)
        for mode, owner, size, path in entries
        if not mode.startswith("d")
    }


class Deb(unittest.TestCase):
    def test_there_are_three(self):
        self.assertEqual(
            sorted(path.name.split("_")[0] for path in FOLDER.glob("*.deb")), sorted([LIBRARY, HEADERS, PROGRAM])
        )

    def test_files_are_where_debian_has_them(self):
        self.assertEqual(
            set(contents(LIBRARY)),
            {
                f"{LIB}/libstrobe.so.{SO}",
                f"{LIB}/libstrobe.so.{VERSION}",
                f"usr/share/doc/{LIBRARY}/copyright",
                f"usr/share/doc/{LIBRARY}/THIRD_PARTY_NOTICES",
            },
        )
        headers = set(contents(HEADERS))
        for path in ("libstrobe.so", "pkgconfig/strobe.pc", "cmake/strobe/strobe-config.cmake"):
            self.assertIn(f"{LIB}/{path}", headers)
        for header in ("attention.h", "strobe.h", "version.h"):
            self.assertIn(f"usr/include/strobe/{header}", headers)
        self.assertEqual(
            set(contents(PROGRAM)),
            {
                "usr/bin/strobe",
                "usr/share/man/man1/strobe.1.gz",
                "usr/share/bash-completion/completions/strobe",
                "usr/share/fish/vendor_completions.d/strobe.fish",
                "usr/share/zsh/vendor-completions/_strobe",
                "usr/share/doc/strobe/copyright",
            },
        )

    def test_no_file_is_in_two_packages(self):
        names = [set(contents(name)) for name in (LIBRARY, HEADERS, PROGRAM)]
        self.assertEqual(sum(map(len, names)), len(set.union(*names)))

    def test_everything_is_roots_and_writable_by_root_alone(self):
        for name in (LIBRARY, HEADERS, PROGRAM):
            for path, (mode, owner, _) in contents(name).items():
                self.assertEqual(owner, "root/root", path)
                if mode[0] == "-":
                    self.assertIn(mode, ("-rw-r--r--", "-rwxr-xr-x"), path)

    def test_fields(self):
        for name, multi_arch, section in (
            (LIBRARY, "same", "libs"),
            (HEADERS, "same", "libdevel"),
            (PROGRAM, "foreign", "science"),
        ):
            self.assertEqual(field(name, "Multi-Arch"), multi_arch)
            self.assertEqual(field(name, "Section"), section)
            self.assertEqual(field(name, "Version"), VERSION)
            self.assertEqual(field(name, "Maintainer"), "Ada Lovelace <ada@example.org>")
            self.assertIn("attention", field(name, "Description").lower())
        for name in (HEADERS, PROGRAM):
            self.assertIn(f"{LIBRARY} (= {VERSION})", field(name, "Depends"))

    def test_dependencies_are_what_is_linked(self):
        for library in ("libc6", "libfmt", "libhwy1", "libmd0", "libstdc++6", "libtbb12"):
            self.assertIn(library, field(LIBRARY, "Depends"))
        self.assertIn("libopenblas", field(PROGRAM, "Depends"))

    def test_installed_size_is_that_of_the_files(self):
        for name in (LIBRARY, HEADERS, PROGRAM):
            bytes_of_files = sum(size for mode, _, size in contents(name).values() if mode[0] == "-")
            entries = len(run("dpkg-deb", "--contents", package(name)).splitlines())
            size = int(field(name, "Installed-Size"))
            self.assertGreaterEqual(size * 1024, bytes_of_files, name)
            self.assertLessEqual(size, bytes_of_files / 1024 + entries, name)

    def test_control_archive_is_whole(self):
        for name in (LIBRARY, HEADERS, PROGRAM):
            members = run("ar", "t", package(name)).split()
            self.assertEqual(
                [re.sub(r"\.[a-z]+$", "", member.rstrip("/")) for member in members],
                ["debian-binary", "control.tar", "data.tar"],
            )

    def test_the_library_is_found_by_ldconfig(self):
        self.assertIn("triggers", run("dpkg-deb", "--info", package(LIBRARY)))
        self.assertIn("SONAME", run("readelf", "--dynamic", self.unpacked(LIBRARY) / LIB / f"libstrobe.so.{VERSION}"))

    def test_the_program_has_no_run_path(self):
        dynamic = run("readelf", "--dynamic", self.unpacked(PROGRAM) / "usr/bin/strobe")
        self.assertIn(f"libstrobe.so.{SO}", dynamic)
        self.assertNotIn("PATH", dynamic)

    def unpacked(self, name):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        run("dpkg-deb", "--extract", package(name), folder.name)
        return Path(folder.name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
