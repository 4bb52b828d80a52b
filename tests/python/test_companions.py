# SPDX-License-Identifier: Apache-2.0
"""The sources of the packages beside Strobe's own: their metadata, and that what they name and import exists."""

import tomllib
from pathlib import Path

import companions
import pytest
import strobe

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "strobe-flash-attn": ROOT / "python/flash_attn",
    "strobe-flash-attn-interface": ROOT / "python/flash_attn_interface",
    "strobe-sglang": ROOT / "python/sglang_backend",
    "strobe-vllm": ROOT / "python/vllm_backend",
}


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_package_is_listed():
    names = {project(file.parent)["name"] for file in (ROOT / "python").glob("*/pyproject.toml")}
    assert names - {"strobe-kernels"} == set(FOLDERS) == set(companions.COMPANIONS)


@pytest.mark.parametrize("name", FOLDERS)
def test_versions_are_those_of_strobe(name):
    said = project(FOLDERS[name])
    assert (said["name"], said["version"]) == (name, strobe.__version__)
    assert f"strobe=={strobe.__version__.rpartition('.')[0]}.*" in said["dependencies"]


@pytest.mark.parametrize("name", FOLDERS)
def test_entry_points_are_functions_of_the_package(name):
    points = project(FOLDERS[name]).get("entry-points", {})
    assert points == companions.COMPANIONS[name][1]
    assert companions.broken_entry_points(points, [FOLDERS[name]]) == []


@pytest.mark.parametrize("name", FOLDERS)
def test_what_a_package_imports_from_strobe_exists(name):
    assert companions.missing(companions.COMPANIONS[name][0], [FOLDERS[name], ROOT / "python"]) == []


def test_what_is_missing_is_found(tmp_path):
    package = tmp_path / "engine_backend"
    package.mkdir()
    (package / "__init__.py").write_text(
        'BACKEND = "engine_backend.backend.Gone"\nif BACKEND:\n    from strobe import attention\nregister = None\n'
    )
    (package / "backend.py").write_text("import strobe.gone\nfrom strobe.torch import Shard, gone\n")
    assert companions.missing("engine_backend", [tmp_path, ROOT / "python"]) == [
        "engine_backend/__init__.py: engine_backend.backend Gone",
        "engine_backend/backend.py: strobe.gone",
        "engine_backend/backend.py: strobe.torch gone",
    ]
    entry_points = {"engine.plugins": {"strobe": "engine_backend:register", "other": "engine_gone:register"}}
    assert companions.broken_entry_points(entry_points, [tmp_path]) == [
        "engine.plugins: strobe = engine_backend:register",
        "engine.plugins: other = engine_gone:register",
    ]
