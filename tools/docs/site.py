"""Hooks of mkdocs: the site has the repository's own pages, at their own places, so that they read well as files, too.

The tricky idea: nothing is copied or written twice. The site's tree is the repository's tree, hence a link between two
pages is right in both. What is not a page (code, manifests) is no part of the site: its link is left as text, or leads
to the code host once `repo_url` names one in mkdocs.yml. Drawings are drawn here, because mermaid's program would have
to be loaded from somewhere else.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File, Files

from tools.docs.drawing import drawn
from tools.docs.page import ROOT, pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

LEFT_OUT: Final = (".github/",)
"""Pages that only a code host needs."""
PICTURES: Final = ("docs/images", "docs/assets")
_FENCE: Final = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_MERMAID: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def sources() -> list[str]:
    """Paths in the repository of everything that the site is made of."""
    texts = [page.path for page in pages() if not page.path.startswith(LEFT_OUT)]
    pictures = [path for folder in PICTURES for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    return [*texts, *(path.relative_to(ROOT).as_posix() for path in pictures)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the repository's pages in the place of the folder that mkdocs has read."""
    theirs = [file for file in files if file.src_dir != config.docs_dir]
    ours = [File.generated(config, path, abs_src_path=str(ROOT / path)) for path in sources()]
    return Files([*ours, *theirs])


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the drawings, and mend the links that lead out of the site."""
    drawings = _MERMAID.sub(lambda result: drawn(result[1]), markdown)
    parts = _FENCE.split(drawings)
    known = {file.src_uri for file in files}
    folder = posixpath.dirname(page.file.src_uri)
    return "".join(part if number % 2 else _mended(part, folder, known, config) for number, part in enumerate(parts))


def _mended(text: str, folder: str, known: set[str], config: MkDocsConfig) -> str:
    def mend(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        return link(words, target, folder, known, config.repo_url or "")

    # Backticks inside a link's text are its own; elsewhere what they hold is no link.
    return _LINK.sub(mend, text)


def link(words: str, target: str, folder: str, known: set[str], host: str) -> str:
    """A Markdown link as the site can follow it.

    Args:
        words: What stands in brackets.
        target: What stands in parentheses.
        folder: Of the page, in the repository.
        known: Paths of everything that the site has.
        host: Address of the repository at a code host, or empty.
    """
    path, hash_, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return f"[{words}]({target})"
    place = posixpath.normpath(posixpath.join(folder, path))
    if place in known:
        return f"[{words}]({target})"
    if f"{place}/README.md" in known:
        return f"[{words}]({path.rstrip('/')}/README.md{hash_}{anchor})"
    return f"[{words}]({host.rstrip('/')}/blob/HEAD/{place}{hash_}{anchor})" if host else words
