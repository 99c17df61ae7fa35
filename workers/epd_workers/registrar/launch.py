"""Start the router with its keys.

The router takes keys as command line flags only. It is a Python program, so it is called in this process with the flags
added in memory: the keys show neither in the process list nor in the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_workers.registrar.key import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_OWNED = {
    "--control-plane-api-keys": "--control-key-file",
    "--tenant-api-key": "--api-key-file",
    "--api-key": "--api-key-file",
}


class FlagError(Exception):
    """The router's flags cannot be used."""


def arguments(flags: Sequence[str], control_key_file: Path, api_key_file: Path | None) -> list[str]:
    """The router's complete command line.

    Args:
        flags: Flags of ``smg launch``.
        control_key_file: Key for the worker endpoints and other administration.
        api_key_file: Key that clients must present, or None to serve everybody who reaches the port.

    Returns:
        The arguments, keys included.

    Raises:
        FlagError: A flag that carries a key was given openly.
        KeyFileError: A key file is missing or unusable.
    """
    given = [flag for flag in flags if flag.partition("=")[0] in _OWNED]
    if given:
        names = ", ".join(f"{flag.partition('=')[0]} (use {_OWNED[flag.partition('=')[0]]})" for flag in given)
        raise FlagError(f"flags that carry keys are not accepted after --: {names}")
    result = ["launch", *flags]
    if api_key_file is not None:
        # A tenant key is demanded of clients; the router's --api-key is meant for presenting to workers.
        result += ["--tenant-api-key", f"clients:{read(api_key_file, 'client')}"]
    control = read(control_key_file, "control")
    return [*result, "--control-plane-api-keys", f"registrar:registrar:admin:{control}"]


def route(flags: Sequence[str], control_key_file: Path, api_key_file: Path | None) -> None:
    """Run the router until it ends.

    Raises:
        FlagError: A flag that carries a key was given openly, or the router is not installed.
        KeyFileError: A key file is missing or unusable.
    """
    command_line = arguments(flags, control_key_file, api_key_file)
    try:
        from smg.cli import main  # noqa: PLC0415 - heavy, and absent where only the registrar runs
    except ImportError as error:
        raise FlagError("the router (smg) is not installed here; install the extra 'router'") from error
    main(command_line)
