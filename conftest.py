"""For all tests: seeds, how tests share two processes, and that whatever can run in CI runs there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from typing_extensions import override
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

# A busy machine is slow at times: how long something takes is for benchmarks to say.
# The same tree gets the same verdict, so examples follow from the test's source and none is remembered between runs.
settings.register_profile("fixed", settings.get_profile("default"), deadline=None, derandomize=True, database=None)
# For `--hypothesis-profile fresh`, as every night: new examples on every run, and a failure says how to get it again.
settings.register_profile("fresh", settings.get_profile("default"), deadline=None, print_blob=True)
settings.load_profile("fixed")

# Tests of these folders share processes that take long to start, so one process of pytest runs the whole folder.
TOGETHER = ("tests/tools/differential/", "tests/swapool/traffic/")
# What comes first, the other folders after it in the order of their names. Traffic waits much and minds who takes its
# processors, so another process of pytest computes alone meanwhile; short files come last, so that no process is idle.
ORDER = (
    "tests/swapool/traffic/",
    "tests/reference/",
    "tests/tools/differential/",
    "tests/registrar/",
    "tests/swapool/",
)


class FileScheduling(LoadScopeScheduling):
    """Keeps the tests of a file, and of some folders, in one process: there they share fixtures."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Distribute the tests when they run in several processes, unless `--dist` says how."""
    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False  # the order is the one below
    return FileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders in order."""

    def place(item: pytest.Item) -> int:
        return next((number for number, folder in enumerate(ORDER) if item.nodeid.startswith(folder)), len(ORDER))

    items.sort(key=place)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failure: whatever can run there must run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = reporter.stats.get("skipped", [])
    if os.environ.get("CI") and skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"CI is set and {len(skipped)} tests were skipped", red=True)
