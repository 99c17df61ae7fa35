"""How far back the rows of a trimmed request may look."""

from __future__ import annotations

from enum import StrEnum


class Policy(StrEnum):
    """Where a request's floor is; values name the versions that the rules come from.

    Both read only rows that were run: a request's earlier chunks have left its last `window` rows. They differ for a
    chunk shorter than the window. vLLM has a third rule (the first one, but for trimmed requests alone), which is not
    built: it equals `WINDOW` once a chunk reaches the window, and short chunks keep plain windows.
    """

    WINDOW = "0.5.23"
    """SGLang 0.5.23: max(0, S - window); a short chunk sees rows that an earlier one wrote."""

    TAIL = "dsv41-37ae292e"
    """SGLang commit 37ae292e: S - T, the first row run now; a short chunk sees only itself."""
