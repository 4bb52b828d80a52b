# SPDX-License-Identifier: Apache-2.0
"""What pages say of the project itself: its version, and where its repository is."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def version():
    return re.search(r"project\(strobe VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]


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
    return https(subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip())
