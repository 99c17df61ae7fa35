"""What ends a release."""

from __future__ import annotations


class ReleaseError(Exception):
    """A release could not be made or is not right; the message names the file, what is wrong, and what to do."""
