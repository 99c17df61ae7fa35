"""The control key: drawn once for the life of a router pod, shared by the router and the registrar through a volume."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class KeyFileError(Exception):
    """A key file cannot be written or holds no usable key."""


def draw(path: Path) -> bool:
    """Write a random key unless the file already holds one.

    Args:
        path: The key file; readable by owner and group, writable by nobody.

    Returns:
        Whether a key was drawn.

    Raises:
        KeyFileError: The folder is missing or not writable.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600, exist_ok=False)
        partial.write_text(secrets.token_urlsafe(32), encoding="ascii")
        partial.chmod(0o440)
        try:
            # A hard link appears complete or not at all, and never replaces a key that others already use.
            path.hardlink_to(partial)
        except FileExistsError:
            return False
        finally:
            partial.unlink()
    except OSError as error:
        raise KeyFileError(f"{path}: cannot write the key ({error.strerror}); mount a writable volume there") from error
    return True


def read(path: Path, purpose: str) -> str:
    """Read a key file.

    Args:
        path: The file.
        purpose: What the key is for, for the error message.

    Returns:
        The key without surrounding white space.

    Raises:
        KeyFileError: Missing, unreadable, empty, or not one line.
    """
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: cannot read the {purpose} key ({error})") from error
    if not key or len(key.split()) != 1:
        raise KeyFileError(f"{path}: the {purpose} key must be one line without spaces, and not empty")
    return key
