"""Draws the terminal pictures whose commands run anywhere: `python -m tools.docs.pictures`."""

from __future__ import annotations

import shlex
import sys
from typing import Final

from tools.docs.page import ROOT
from tools.docs.record import picture, shown

COLUMNS: Final = 88
"""Narrow, so that the letters are large enough beside a page's text."""
PICTURES: Final = {"docs/images/validate.svg": "epd validate docs/examples/refused.yaml"}
"""The command of each picture. The demo's needs a cluster: see CONTRIBUTING.md."""


def drawn(command: str) -> str:
    """The picture of a command that is run now."""
    lines, _ = shown(shlex.split(command), COLUMNS, quiet=True)
    return picture([f"\x1b[1m$ {command}\x1b[0m", *lines], "epd", COLUMNS)


def main() -> int:
    """Entry point."""
    for path, command in PICTURES.items():
        place, text = ROOT / path, drawn(command)
        if not place.is_file() or place.read_text(encoding="utf-8") != text:
            place.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
