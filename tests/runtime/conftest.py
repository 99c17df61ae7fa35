from __future__ import annotations

import pytest

from tests.support.virtual_time import Virtual, run_virtual


@pytest.fixture(scope="session")
def virtual() -> Virtual:
    return run_virtual
