from __future__ import annotations

import pytest

from tests.support.world import MakeResource, World, resource


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    return World


@pytest.fixture(scope="session")
def make_resource() -> MakeResource:
    return resource
