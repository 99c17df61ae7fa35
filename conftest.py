"""For all tests: whatever can run in CI must run there."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A busy machine is slow at times: how long something takes is for benchmarks to say.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failure: whatever can run there must run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = reporter.stats.get("skipped", [])
    if os.environ.get("CI") and skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"CI is set and {len(skipped)} tests were skipped", red=True)
