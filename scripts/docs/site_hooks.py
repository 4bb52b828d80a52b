# SPDX-License-Identifier: Apache-2.0
"""The project's extensions of MkDocs, which mkdocs.yml names under `hooks`.

The pages are written to be read on GitHub, too. So the site takes its front page from README.md, renders GitHub's
formulas, makes the API reference from the public headers and the Python package and the performance logs from their
data, and rewrites links that lead out of docs/.
"""

import re
import sys
from pathlib import Path, PurePosixPath

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import headers
import performance_logs
import project
import python_reference
from formulas import Formulas

ROOT = Path(__file__).resolve().parents[2]
# Pages of the site that do not lie in docs/.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "tests/emulator/README.md": "emulator.md",
}
EXAMPLES = ("quickstart", "sentence_search", "gpt", "generate")
PAGES |= {f"examples/{name}/README.md": f"examples/{name}.md" for name in EXAMPLES}
PAGES |= {f"docs/log/{path.name}": f"log/{path.stem}.md" for path in performance_logs.log_files(ROOT)}
PAGES |= {f"include/strobe/{path.name}": f"api/{path.stem}.md" for path in headers.public_headers(ROOT)}
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
WIDE = re.compile(r"<table>.*?</table>|<p><img [^>]*></p>", re.DOTALL)  # scrolls on a narrow screen
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def source_of(page):
    """The file in the repository from which a page is made."""
    places = {site: repository for repository, site in PAGES.items()}
    return PurePosixPath(places.get(page, f"docs/{page}"))


def normal(path):
    """A path without `..`."""
    parts = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def site_place(target):
    """The place of a repository's file on the site; a folder stands for its README.md, as on GitHub."""
    if (ROOT / target / "README.md").is_file():
        target += "/README.md"
    if target in PAGES:
        return PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"source/{target}"


def relinked(markdown, page):
    """The page with its links changed to those of the site."""
    source, depth = source_of(page), page.count("/")

    def follow(match):
        target = normal(source.parent / match.group(2))
        return match.group(1) + "../" * depth + site_place(target) + match.group(3)

    pieces = CODE.split(markdown)
    return "".join(piece if number % 2 else LINK.sub(follow, piece) for number, piece in enumerate(pieces))


def linked_sources(files):
    """Files of the repository, outside docs/, that pages link to."""
    for file in files.documentation_pages():
        text = CODE.sub("", file.content_string)
        for match in LINK.finditer(text):
            target = normal(source_of(file.src_uri).parent / match.group(2))
            if not target.startswith("docs/") and target not in PAGES and (ROOT / target).is_file():
                yield target


def text_of(path):
    """A page that is made from a public header or a log, or lies outside docs/."""
    if path.suffix == ".h":
        return headers.page(path)
    return performance_logs.page(path) if path.suffix == ".json" else path.read_text(encoding="utf-8")


def on_config(config):
    config.site_name = f"Strobe {project.version()}"
    config.repo_url = project.repository()
    config.repo_name = "Source"
    config.edit_uri = "edit/main/docs/" if config.repo_url else ""
    return config


def on_files(files, config):
    for repository, site in PAGES.items():
        path = ROOT / repository
        files.append(File.generated(config, site, content=text_of(path)))
    files.append(File.generated(config, "api/python.md", content=python_reference.page()))
    for target in sorted(set(linked_sources(files))):
        files.append(File.generated(config, f"source/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown, page, **_):
    page.formulas = Formulas()
    try:
        return page.formulas.mark(relinked(markdown, page.file.src_uri))
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def on_page_content(html, page, **_):
    html = page.formulas.fill(html)
    return WIDE.sub(r'<div class="wide">\g<0></div>', html)
