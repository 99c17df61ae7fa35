from __future__ import annotations

import pytest

from tools.docs.page import Page, pages


@pytest.fixture(scope="session")
def every() -> dict[str, Page]:
    """All pages of the repository, by path."""
    return {page.path: page for page in pages()}


@pytest.fixture(scope="session")
def written(every: dict[str, Page]) -> list[Page]:
    """Those that people write."""
    return [page for page in every.values() if not page.generated]
