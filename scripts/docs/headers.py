# SPDX-License-Identifier: Apache-2.0
"""Turns a public header into a reference page: its comments as text, its declarations as code.

It relies on the style of the headers: one declaration after another inside `namespace strobe` or `extern "C"`, each
with its comment above it, fields with comments of their own. Bodies of inline functions, private members and
`namespace detail` are left out. A declaration directly below another one shares its comment.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

SCAFFOLD = re.compile(
    r"// SPDX-License-Identifier: .*\n|#pragma once\n|#include .*\n|#ifdef __cplusplus\n.*\n#endif\n"
    r"|namespace (?:strobe|expression) \{\n|\}  // namespace (?:strobe|expression)\n"
)
DETAIL = re.compile(r"^namespace detail \{\n.*?^\}  // namespace detail\n", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(?://[^\n]*\n)+|/\*.*?\*/[ \t]*\n", re.DOTALL)
NOT_SHOWN = re.compile(r"\n* private:\n.*?(?=\n\};)|  // NOLINT[^\n]*|STROBE_API ", re.DOTALL)
STABILITY = re.compile(r"\s*@(stable|experimental)(?:, but for ([\w,\s]+))?$")
LINE_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
NAMES = (
    re.compile(r"(?:struct|class(?: \[\[nodiscard\]\])?|enum(?: class)?|union)(?: STROBE_API)? (\w+)"),
    re.compile(r"using (\w+) ="),
    re.compile(r"#define (\w+)"),
    re.compile(r"typedef [^;]*\(\*(\w+)\)"),
    re.compile(r"(\w+)\("),
    re.compile(r"(\w+) = "),
)


def public_headers(root):
    """Every header of the reference; export.h and cxx20.h have only what the others use."""
    others = ("export.h", "cxx20.h")
    return sorted(path for path in (root / "include/strobe").glob("*.h") if path.name not in others)


@dataclass
class Entry:
    """Declarations that belong together."""

    comment: str
    names: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


def plain(comment):
    """A comment's text without its marks."""
    if comment.startswith("/*"):
        comment = re.sub(r"^\s*\* ?", "", comment.strip()[2:-2], flags=re.MULTILINE)
    return re.sub(r"^\s*/// ?|^\s*// ?", "", comment, flags=re.MULTILINE).strip()


def end_of_declaration(text, start):
    """The place after the declaration that begins at `start`: its `;` or, of a function with a body, its brace."""
    if text.startswith("#define", start):
        return text.index("\n", start)
    depth, at = 0, start
    while at < len(text):
        comment = LINE_COMMENT.match(text, at)
        if comment:
            at = comment.end()
            continue
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(text[at], 0)
        at += 1
        if depth == 0 and (text[at - 1] == ";" or (text[at - 1] == "}" and not text[at:].lstrip().startswith(";"))):
            if text[at - 1] == "}" and re.match(r" \w+;", text[at:]):  # typedef struct {...} name;
                continue
            return at
    raise ValueError(f"no end of the declaration: {text[start : start + 80]!r}")


def shown(declaration):
    """A declaration as a reader needs it."""
    text = NOT_SHOWN.sub("", declaration)
    if not re.match(r"(template <[^\n]*>\n)?(typedef )?(struct|class|enum|union)\b", text):
        text = re.sub(r"\s*\{.*\}$", ";", text, flags=re.DOTALL) if text.endswith("}") else text
    lines = []
    for line in text.splitlines():
        indent = " " * len("STROBE_API ")
        follows = (
            lines and line.startswith(indent) and "STROBE_API" in declaration and not line.lstrip().startswith("//")
        )
        lines.append(line.removeprefix(indent) if follows else line)
    return "\n".join(lines).rstrip()


def name_of(declaration):
    text = re.sub(r"^template <[^\n]*>\n", "", declaration)
    found = (pattern.search(text) for pattern in NAMES)
    return next(match.group(1) for match in found if match)


def parse(text):
    """The header's own comment and its entries."""
    text = SCAFFOLD.sub("", DETAIL.sub("", text))
    head = COMMENT.match(text)
    at, entries, comment, gap = head.end(), [], None, True
    while at < len(text):
        if text[at] == "\n":
            gap, comment, at = True, None, at + 1
            continue
        block = COMMENT.match(text, at)
        if block:
            comment, at = plain(block.group()), block.end()
            continue
        end = end_of_declaration(text, at)
        end = text.find("\n", end) if text.find("\n", end) >= 0 else len(text)  # with what stands on its last line
        declaration = text[at:end]
        name = name_of(declaration)
        overload = comment is None and entries and entries[-1].names == [name]
        if not overload and (comment is not None or gap or not entries):
            entries.append(Entry(comment or ""))
        entries[-1].code.append(shown(declaration))
        if name not in entries[-1].names:
            entries[-1].names.append(name)
        at, comment, gap = end + 1, None, False
    return plain(head.group()), entries


def stability(comment):
    """A comment without its tag, the tag's word ("" where there is none) and the members that it excepts."""
    tag = STABILITY.search(comment)
    if not tag:
        return comment, "", []
    return comment[: tag.start()], tag[1], re.findall(r"\w+", tag[2] or "")


def promise(word, excepted):
    """The tag as a line of the page."""
    names = ", ".join(f"`{name}`" for name in excepted)
    return f"*{word.capitalize()}*" + (f", but for {names}" if names else "") if word else ""


def prose(comment):
    """A comment as Markdown: shapes, calls and identifiers in code, everything else literal."""
    code = (
        r"`[^`]+`|\[[\w ,.+|*/()-]+\]|\b\w*(?:_|::)\w+(?:::\w+)*(?:\(\))?|\b\w+\(\)|\b\w+\.h\b|\b[a-z]\w*\.[a-z]\w*\b"
    )
    parts = re.split(f"({code})", comment)
    literal = str.maketrans({"*": r"\*", "<": "&lt;", ">": "&gt;", "|": "&#124;"})
    return "".join(
        f"`{part.strip('`')}`" if number % 2 else part.translate(literal) for number, part in enumerate(parts)
    )


def page(path: Path) -> str:
    """The reference page of one header."""
    head, entries = parse(path.read_text(encoding="utf-8"))
    language = "c" if "extern" in path.read_text(encoding="utf-8") else "cpp"
    parts = [f"# `strobe/{path.name}`", prose(head), f"```{language}\n#include <strobe/{path.name}>\n```"]
    for entry in entries:
        code = "\n".join(entry.code)
        comment, word, excepted = stability(entry.comment)
        heading = f"## {', '.join(entry.names)}"
        parts += [heading, prose(comment), f"```{language}\n{code}\n```", promise(word, excepted)]
    return "\n\n".join(part for part in parts if part) + "\n"
