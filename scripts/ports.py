# SPDX-License-Identifier: Apache-2.0
"""Makes the source archive and the ports of vcpkg and Conan for it, in build/ports, and tests them: ports.py [URL]

URL is where the archive will be published; without it the ports name the file. The tests build the library from the
archive with the system's libraries in the place of those packages, at -O0 and for this processor alone, and build and
run examples/quickstart against the result. vcpkg itself does not run: packaging/vcpkg/test stands in for it.
"""

import gzip
import hashlib
import os
import shutil
import subprocess
import sys

import project

PACKAGING, PORTS = project.ROOT / "packaging", project.ROOT / "build" / "ports"
SYSTEM = {"highway": "1.0.3", "onetbb": "2021.8.0", "fmt": "9.1.0", "libmd": "1.0.4"}  # Debian 12's
FAST = ["-O0", "-march=native", "-DHWY_COMPILE_ONLY_STATIC"]


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, **options)


def make_archive(version):
    """The committed sources, byte for byte the same in each run."""
    name = f"strobe-{version}"
    tar = subprocess.run(
        ["git", "archive", "--format=tar", f"--prefix={name}/", "HEAD"],
        cwd=project.ROOT,
        capture_output=True,
        check=True,
    ).stdout
    archive = PORTS / f"{name}.tar.gz"
    archive.write_bytes(gzip.compress(tar, mtime=0))
    return archive


def make_vcpkg(archive, url, version):
    folder = PORTS / "vcpkg" / "strobe"
    shutil.copytree(PACKAGING / "vcpkg" / "strobe", folder)
    template = folder / "portfile.cmake.in"
    text = template.read_text(encoding="utf-8")
    values = {"url": url, "version": version, "sha512": hashlib.sha512(archive.read_bytes()).hexdigest()}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (folder / "portfile.cmake").write_text(text, encoding="utf-8")
    template.unlink()
    return folder


def make_conan(archive, url, version):
    folder = PORTS / "conan"
    shutil.copytree(PACKAGING / "conan", folder, ignore=shutil.ignore_patterns("system"))
    for name in ("main.cpp", "main.c", "gpu.cpp", "CMakeLists.txt"):
        shutil.copy(project.ROOT / "examples" / "quickstart" / name, folder / "test_package")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    lines = ["sources:", f'  "{version}":', f'    url: "{url}"', f"    sha256: {digest}"]
    (folder / "conandata.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_vcpkg(port):
    work = PORTS / "vcpkg-test"
    options = f"-DCMAKE_UNITY_BUILD=ON;-DCMAKE_BUILD_TYPE=Release;-DCMAKE_CXX_FLAGS_RELEASE={' '.join(FAST)}"
    script = PACKAGING / "vcpkg" / "test" / "run_port.cmake"
    run("cmake", f"-DPORT_FOLDER={port}", f"-DWORK={work}", f"-DTEST_OPTIONS={options}", "-P", script)
    quickstart, build = project.ROOT / "examples" / "quickstart", work / "quickstart"
    run("cmake", "-G", "Ninja", "-S", quickstart, "-B", build, f"-DCMAKE_PREFIX_PATH={work / 'installed'}")
    run("cmake", "--build", build)
    run("ctest", "--test-dir", build, "--output-on-failure")


def test_conan(recipe, version):
    conan = project.ROOT / ".venv" / "bin" / "conan"
    home = {**os.environ, "CONAN_HOME": str(PORTS / "conan-home")}
    run(conan, "profile", "detect", "--force", env=home)
    for name, of in SYSTEM.items():
        run(conan, "create", PACKAGING / "conan" / "system", "--name", name, "--version", of, env=home)
    settings = ["-s", "compiler.cppstd=20", "-c", f"tools.build:cxxflags={FAST}"]
    settings += ["-c", "tools.cmake.cmaketoolchain:extra_variables={'CMAKE_UNITY_BUILD': 'ON'}"]
    run(conan, "create", recipe, "--version", version, "--no-remote", *settings, env=home)


def main():
    version = project.version()
    shutil.rmtree(PORTS, ignore_errors=True)
    PORTS.mkdir(parents=True)
    archive = make_archive(version)
    url = sys.argv[1] if len(sys.argv) > 1 else archive.as_uri()
    vcpkg, conan = make_vcpkg(archive, url, version), make_conan(archive, url, version)
    if url == archive.as_uri():
        test_vcpkg(vcpkg)
        test_conan(conan, version)
    print(f"{archive}\n{vcpkg}\n{conan}")


if __name__ == "__main__":
    main()
