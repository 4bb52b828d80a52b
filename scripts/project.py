# SPDX-License-Identifier: Apache-2.0
"""What the site and the wheel say of the project: its version, and where its repository is.

pyproject.toml names this module as a provider of the wheel's metadata.
"""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version():
    """The version in include/strobe/version.h."""
    header = (ROOT / "include/strobe/version.h").read_text(encoding="utf-8")
    return ".".join(re.findall(r"^#define STROBE_VERSION_[A-Z]+ (\d+)$", header, re.MULTILINE))


def https(remote):
    """The page of a remote, git@host:owner/name.git or https://host/owner/name; "" where it has none."""
    match = re.fullmatch(r"(?:https://(?:[^@/]*@)?|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    return f"https://{match[1]}/{match[2]}" if match else ""


def repository():
    """STROBE_REPOSITORY_URL, or the page of the remote that this tree was cloned from; "" where neither is known."""
    given = os.environ.get("STROBE_REPOSITORY_URL")
    if given is not None:
        return given
    git = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    try:
        return https(subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip())
    except FileNotFoundError:  # no git: an unpacked source distribution
        return ""


def dynamic_metadata(_settings, _project):
    """The wheel's version and URLs, in the form of pyproject.toml's [project]."""
    url = repository()
    pages = {"Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    return {"version": version(), "urls": {name: url + page for name, page in pages.items()} if url else {}}


def dynamic_wheel(_settings):
    """A wheel built from a source distribution may know no URLs, or others."""
    return {"urls": True}
