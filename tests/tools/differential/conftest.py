from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.differential.oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The real engine; its environment is installed when it is not there yet."""
    with Oracle() as engine:
        yield engine
