from __future__ import annotations

import pytest
import torch

from epd_workers.reference.model.decoder import DecoderSizes
from epd_workers.reference.model.seeded import SeededModel

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> SeededModel:
    """Small enough for hundreds of whole answers a second."""
    sizes = DecoderSizes(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=48)
    return SeededModel(seed=5, context_length=128, sizes=sizes)
