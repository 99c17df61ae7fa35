"""SHA-256 of the engine's files that hooks lean on: `digests.json`, made by `python -m epd_sglang.digests`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_suffix(".json")


def known() -> dict[str, str]:
    """Digest by file, below the engine's package."""
    table: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return table


def installed() -> dict[str, str]:
    """The same of the installed engine, for the files that today's hooks lean on.

    Raises:
        FileNotFoundError: A hook names a file that the engine lacks.
    """
    from epd_sglang import catalog, engine  # noqa: PLC0415 - only the maker of the table needs them
    from epd_sglang.cpu.hooks import HOOKS  # noqa: PLC0415

    names = sorted(frozenset().union(*(hook.files for hook in (*catalog.hooks(), *HOOKS))))
    values = {name: engine.digest(engine.root() / name) for name in names}
    if absent := [name for name, value in values.items() if value is None]:
        raise FileNotFoundError(f"the engine has no {', '.join(absent)}")
    return {name: value for name, value in values.items() if value is not None}


if __name__ == "__main__":
    FILE.write_text(json.dumps(installed(), indent=2) + "\n", encoding="utf-8")
    sys.stderr.write(f"{FILE.name} is written\n")
