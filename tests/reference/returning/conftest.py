from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.support.reference.engines import tiny_model

if TYPE_CHECKING:
    from epd_workers.reference.model.loaded import LoadedModel

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return tiny_model(seed=5)
