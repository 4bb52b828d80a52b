# SPDX-License-Identifier: Apache-2.0
"""Writes a version wherever Strobe's version stands: set_version.py MAJOR.MINOR.PATCH

include/strobe/version.h is the place that builds read. tests/docs/version.py checks the others against it.
"""

import re
import sys

import project

PACKAGES = ("flash_attn", "flash_attn_interface", "kernels", "sglang_backend", "vllm_backend")
# Each place: a file and a pattern, whose first group is the version, or its first two numbers.
PLACES = [
    ("CITATION.cff", r"^version: (\S+)$"),
    ("README.md", r"^Version ([\d.]+) is"),
    ("docs/questions.md", r"^  version = .([\d.]+).,$"),
    ("examples/quickstart/CMakeLists.txt", r"^find_package\(strobe ([\d.]+) REQUIRED"),
    ("packaging/vcpkg/strobe/vcpkg.json", r'^  "version": "([\d.]+)",$'),
    *((f"python/{name}/pyproject.toml", r'^version = "(.*)"$') for name in PACKAGES),
    *((f"python/{name}/pyproject.toml", r'"strobe==([\d.]+)\.\*"') for name in PACKAGES),
]


def expected(found, version):
    """What has to stand where `found` does: as many numbers of the version."""
    return ".".join(version.split(".")[: found.count(".") + 1])


def wrong_places(version):
    """(file, what stands there) of each place that does not name the version."""
    for name, pattern in PLACES:
        text = (project.ROOT / name).read_text(encoding="utf-8")
        found = re.findall(pattern, text, re.MULTILINE)
        if not found or any(one != expected(one, version) for one in found):
            yield name, ", ".join(found) or "nothing"


def replaced(text, pattern, version):
    def exchange(match):
        start, end = match.start(1) - match.start(), match.end(1) - match.start()
        return match[0][:start] + expected(match[1], version) + match[0][end:]

    return re.sub(pattern, exchange, text, flags=re.MULTILINE)


def main():
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit("usage: scripts/set_version.py MAJOR.MINOR.PATCH")
    version = sys.argv[1]
    header = project.ROOT / "include/strobe/version.h"
    text = header.read_text(encoding="utf-8")
    for name, number in zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True):
        text = replaced(text, rf"^#define STROBE_VERSION_{name} (\d+)$", number)
    header.write_text(text, encoding="utf-8")
    for name, pattern in PLACES:
        path = project.ROOT / name
        path.write_text(replaced(path.read_text(encoding="utf-8"), pattern, version), encoding="utf-8")
    print(f"{version}; write its part of CHANGELOG.md")


if __name__ == "__main__":
    main()
