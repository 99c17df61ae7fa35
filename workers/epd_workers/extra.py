"""What a program says where the packages of its extra are missing: the wheel brings its scripts and none of them."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, ParamSpec

from epd_workers import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
EXIT_UNINSTALLED = 2


def needed_by(program: str, extra: str) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Let an entry point end with one line, and status 2, where a package of its extra is not installed.

    Args:
        program: What the user called.
        extra: The extra of `pyproject.toml` that brings its packages.
    """

    def decorate(main: Callable[P, int]) -> Callable[P, int]:
        @functools.wraps(main)
        def run(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except ModuleNotFoundError as error:
                return _uninstalled(program, extra, error)

        return run

    return decorate


def _uninstalled(program: str, extra: str, error: ModuleNotFoundError) -> int:
    name = (error.name or "").partition(".")[0]
    if not name or name.startswith("epd_") or name in sys.stdlib_module_names:
        raise error  # a fault of ours
    # The wheel by its file, never by its name: on the public index that name belongs to another project.
    wheel = f"epd-{__version__}-py3-none-any.whl"
    sys.stderr.write(
        f"{program}: needs the extra {extra!r} ({name} is not installed): pip install '{wheel}[{extra}]'\n"
    )
    return EXIT_UNINSTALLED
