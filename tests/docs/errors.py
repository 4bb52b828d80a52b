"""Checks that a page explains every error sentence of the library, and none that is gone: errors.py PAGE.md ROOT

A sentence is a string that becomes the message of a Status: the first string, or named constant, of a call of Status,
invalid, unsupported or refuse, or after a StatusCode in braces. On the page it stands in a code span at the start of a
list item, with an example wherever the source has a {} to fill in.
"""

import re
import sys
from pathlib import Path

FOLDERS = ("src/api", "src/cpu", "src/hopper", "src/runtime")
BUILD_TIME = "src/runtime/pack"  # a program of the build, which users never meet
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# What may stand between the opening of a failure and its first string.
OPENING = re.compile(r"\b(?:Status|invalid|unsupported|refuse)\(|\{\s*StatusCode::\w+\s*,")
LEAD = re.compile(r"(?:\s|StatusCode::\w+|,|(?:fmt::)?format\(|code)*")
GAP = re.compile(r"\{[^{}]*\}")
CONSTANT = re.compile(r'constexpr const char\* (k\w+) = "((?:[^"\\]|\\.)*)"')
ITEM = re.compile(r"^- `(.+?)`(?=:|$)", re.MULTILINE)


def sentences(text, constants):
    """(line, sentence) of every failure in a source file; `constants` are sentences that have a name."""
    for opening in OPENING.finditer(text):
        at = LEAD.match(text, opening.end()).end()
        named = re.compile(r"(?:\w+::)*(k\w+)").match(text, at)
        parts = [constants[named.group(1)]] if named and named.group(1) in constants else []
        while string := STRING.match(text, at):
            parts.append(string.group(1))
            at = re.compile(r"\s*").match(text, string.end()).end()
        if parts:
            yield text.count("\n", 0, opening.start()) + 1, "".join(parts)


def pattern(sentence):
    """What the sentence looks like once its gaps are filled."""
    parts = GAP.split(sentence.replace(r"\"", '"'))
    return re.compile(".*".join(map(re.escape, parts)), re.DOTALL)


def all_sentences(root):
    """Every sentence of the library that has words of its own, and where it is first said."""
    sources = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.[ch]*"))]
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sources}
    constants = {name: sentence for text in texts.values() for name, sentence in CONSTANT.findall(text)}
    found = {}
    for name, text in texts.items():
        for line, sentence in sentences(text, constants) if not name.startswith(BUILD_TIME) else ():
            if re.search(r"\w", GAP.sub("", sentence)):  # others pass on the words of somebody else
                found.setdefault(sentence, f"{name}:{line}")
    return found


def main():
    page, root = Path(sys.argv[1]), Path(sys.argv[2])
    found = all_sentences(root)
    explained, bad = set(), []
    for example in ITEM.findall(page.read_text(encoding="utf-8")):
        fitting = [sentence for sentence in found if pattern(sentence).fullmatch(example)]
        if fitting:
            explained.add(max(fitting, key=lambda sentence: len(GAP.sub("", sentence))))  # the one with fewest gaps
        else:
            bad.append(f"{page.name}: no source says `{example}`")
    bad += [
        f'{place}: "{sentence}" is not explained in {page.name}'
        for sentence, place in found.items()
        if sentence not in explained
    ]
    print(*bad, sep="\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
