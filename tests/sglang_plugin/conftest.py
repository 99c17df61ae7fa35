from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import sglang
from tools import plugin
from tools.differential import environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The Python of the real engine; its environment is installed when it is not there yet."""
    return environment.interpreter()


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin as pods have it, wheel and all."""
    folder = tmp_path_factory.mktemp("plugin")
    plugin.make(folder)
    return folder


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights that the engine takes."""
    return sglang.random_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(
    engine_python: Path, plugin_path: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sglang.Server]:
    """One whole engine on a CPU for all tests that only ask."""
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--enable-metrics", "--enable-encoder-swa-bounded-replay")
    server = sglang.Server.start(engine_python, plugin_path, random_model, log, *flags)
    yield server
    server.stop()
