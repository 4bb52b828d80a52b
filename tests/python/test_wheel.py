# SPDX-License-Identifier: Apache-2.0
"""What the wheel says of itself, and the notices of what it bundles, in pyproject.toml and in the installed wheel."""

import re
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
URL = "https://host.example/owner/strobe"
NOTICES = (ROOT / "python" / "THIRD_PARTY_NOTICES").read_text(encoding="utf-8")


@pytest.fixture
def metadata(tmp_path, monkeypatch):
    """The metadata that the build makes of pyproject.toml, which needs no compiler."""
    backend = pytest.importorskip("scikit_build_core.build")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("STROBE_REPOSITORY_URL", URL)
    folder = tmp_path / backend.prepare_metadata_for_build_wheel(str(tmp_path))
    licenses = {
        path.relative_to(folder / "licenses").as_posix() for path in folder.glob("licenses/**/*") if path.is_file()
    }
    return message_from_string((folder / "METADATA").read_text(encoding="utf-8")), licenses


def test_metadata(metadata):
    said, licenses = metadata
    assert (said["Name"], said["License-Expression"]) == ("strobe", "Apache-2.0")
    assert re.search(
        rf"^## \[{re.escape(said['Version'])}\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert said["Author"] == "The Strobe developers" and said["Requires-Python"] == ">=3.11"
    assert {"attention", "flash-attention"} <= set(said["Keywords"].split(","))
    assert "Operating System :: POSIX :: Linux" in said.get_all("Classifier")
    urls = dict(entry.split(", ") for entry in said.get_all("Project-URL"))
    assert urls["Source"] == URL and all(page.startswith(URL) for page in urls.values())
    assert licenses == {"LICENSE", "python/THIRD_PARTY_NOTICES"} == set(said.get_all("License-File"))


def test_the_description_stands_without_the_repository(metadata):
    text = metadata[0].get_payload()
    assert metadata[0]["Description-Content-Type"].startswith("text/markdown")
    assert text.startswith("# Strobe") and "strobe.attention(q, k, v" in text
    assert "![" not in text and "<img" not in text
    assert not [target for target in re.findall(r"\]\(([^)]*)\)", text) if not target.startswith("https://")]


def test_the_description_runs():
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "python" / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    names = {}
    exec(block, names)
    assert names["o"].shape == (1, 4096, 8, 64)


def test_no_url_is_invented(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    project = pytest.importorskip("project")
    remotes = {
        "https://host.example/owner/strobe.git": URL,
        "https://token@host.example/owner/strobe": URL,
        "git@host.example:owner/strobe.git": URL,
        "ssh://git@host.example/owner/strobe/": URL,
        "/someone/strobe": "",
        "": "",
    }
    assert {remote: project.https(remote) for remote in remotes} == remotes
    monkeypatch.setenv("STROBE_REPOSITORY_URL", "")
    assert project.dynamic_metadata({}, {})["urls"] == {}


def test_every_library_that_may_be_bundled_has_its_notice():
    listed = re.search(r'PRE_INCLUDE_REGEXES "\^lib\(([a-z|]+)\)', (ROOT / "python" / "CMakeLists.txt").read_text())[1]
    compiled_in = ["nanobind", "robin-map", "CLI11", "nlohmann-json", "CCCL", "CUDA headers"]
    for name in [f"lib{name}" for name in listed.split("|")] + compiled_in:
        assert re.search(rf"^{name}\b.*\n-+\n\n\S", NOTICES, re.MULTILINE), name


def test_the_wheel_holds_the_notices_of_its_libraries():
    wheels = list(Path(sys.prefix, "wheels").glob("strobe-[0-9]*.whl"))
    if not wheels:
        pytest.skip("installed from elsewhere: there is no wheel to open")
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        (notices,) = [name for name in names if name.endswith(".dist-info/licenses/python/THIRD_PARTY_NOTICES")]
        assert wheel.read(notices).decode() == NOTICES
        (said,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = message_from_string(wheel.read(said).decode())
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert text.get_all("Classifier") == project["classifiers"] and text["Summary"] == project["description"]
    libraries = {Path(name).name for name in names if ".so" in name and Path(name).name.startswith("lib")}
    assert libraries
    for library in libraries:
        assert re.search(rf"^{re.match('lib[a-z]+', library)[0]}\b.*\n-+\n", NOTICES, re.MULTILINE), library
