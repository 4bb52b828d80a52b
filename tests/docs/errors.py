# SPDX-License-Identifier: Apache-2.0
"""Checks that a page explains every error message of the library, and no obsolete one: errors.py PAGE.md ROOT

A message is a string that becomes that of a Status: the first string, or named constant, of a call of Status,
invalid, unsupported or failure, or after a StatusCode in braces. On the page it stands in a code span at the start of a
list item, with an example for every {} of the source.
"""

import re
import sys
from pathlib import Path

BUILD_TIME = "src/runtime/pack"  # a program of the build, which users never run
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# What may stand between the opening of a failure and its first string.
OPENING = re.compile(r"\b(?:Status|invalid|unsupported|failure)\(|\{\s*StatusCode::\w+\s*,")
LEAD = re.compile(r"(?:\s|StatusCode::\w+|,|(?:fmt::)?format\(|code)*")
GAP = re.compile(r"\{[^{}]*\}")
CONSTANT = re.compile(r'constexpr const char\* (k\w+) = "((?:[^"\\]|\\.)*)"')
ITEM = re.compile(r"^- (`+) ?(.+?) ?\1(?=:|$)", re.MULTILINE)  # messages with backticks stand in two


def messages(text, constants):
    """(line, message) of every failure in a source file; `constants` are messages that have a name."""
    for opening in OPENING.finditer(text):
        at = LEAD.match(text, opening.end()).end()
        named = re.compile(r"(?:\w+::)*(k\w+)").match(text, at)
        parts = [constants[named.group(1)]] if named and named.group(1) in constants else []
        while string := STRING.match(text, at):
            parts.append(string.group(1))
            at = re.compile(r"\s*").match(text, string.end()).end()
        if parts:
            yield text.count("\n", 0, opening.start()) + 1, "".join(parts)


def pattern(message):
    """Matches the message with its gaps filled."""
    parts = GAP.split(message.replace(r"\"", '"'))
    return re.compile(".*".join(map(re.escape, parts)), re.DOTALL)


def all_messages(root):
    """Every message of the library with words of its own, and where it first occurs."""
    sources = sorted((root / "src").rglob("*.[ch]*"))
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sources}
    constants = {name: message for text in texts.values() for name, message in CONSTANT.findall(text)}
    found = {}
    for name, text in texts.items():
        for line, message in messages(text, constants) if not name.startswith(BUILD_TIME) else ():
            if re.search(r"\w", GAP.sub("", message)):  # others pass on a message
                found.setdefault(message, f"{name}:{line}")
    return found


def main():
    page, root = Path(sys.argv[1]), Path(sys.argv[2])
    found = all_messages(root)
    explained, bad = set(), []
    for _, example in ITEM.findall(page.read_text(encoding="utf-8")):
        fitting = [message for message in found if pattern(message).fullmatch(example)]
        if fitting:
            explained.add(max(fitting, key=lambda message: len(GAP.sub("", message))))  # the one with the fewest gaps
        else:
            bad.append(f"{page.name}: no source has the message `{example}`")
    bad += [
        f'{place}: "{message}" is not explained in {page.name}'
        for message, place in found.items()
        if message not in explained
    ]
    print(*bad, sep="\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
