# SPDX-License-Identifier: Apache-2.0
"""Prints the changelog's part for a release, with links that lead into its tag: release_notes.py vMAJOR.MINOR.PATCH

Fails where the tag is not the version of this tree, or the changelog has no part for it.
"""

import re
import sys

import project

LINK = re.compile(r"\]\((?!https?:)([^)]+)\)")


def notes(version, changelog, base):
    """The text below the heading of a version; `base` is what relative links begin with."""
    part = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not part or not part[1].strip():
        sys.exit(f"CHANGELOG.md has no part for {version}")
    text = part[1].strip() + "\n"
    return LINK.sub(rf"]({base}/\1)", text) if base else text


def main():
    tag = sys.argv[1] if len(sys.argv) == 2 else sys.exit("usage: scripts/release_notes.py vMAJOR.MINOR.PATCH")
    version = project.version()
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and the version of this tree is {version}")
    url = project.repository()
    changelog = (project.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    print(notes(version, changelog, f"{url}/blob/{tag}" if url else ""), end="")


if __name__ == "__main__":
    main()
