"""What windows and pages depend on besides the tokens: whose they are, and how they came about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_workers import __version__
from epd_workers.reference.model.replay import PRESETS, early_layers
from epd_workers.swapool.key import Namespace

if TYPE_CHECKING:
    from epd_workers.reference.engine.request import Limits
    from epd_workers.reference.model.loaded import LoadedModel


def namespace(model: LoadedModel, limits: Limits, tenant: str, served: str) -> Namespace:
    """Return the one namespace in which this engine may read what it and its like have written.

    Args:
        model: The weights, and in which type they compute.
        limits: Page size, cache type and the layers that run on all rows; decode says what prefill does.
        tenant: The deployment.
        served: The model's name in requests.
    """
    geometry, text = model.geometry(limits.page_size, limits.cache_type), model.weights.config.text
    return Namespace(
        model=served,
        checkpoint=model.config.digest,
        engine=f"epd-reference/{__version__}/{model.weights.embed.weight.dtype}",
        layout=geometry.layout,
        row_format=limits.cache_type,
        first_layer=0,
        layers=early_layers(PRESETS[limits.replay] if limits.replay else None, text),
        window=geometry.window,
        row_bytes=geometry.window_bytes,
        page_size=geometry.page_size,
        tenant=tenant,
    )
