"""What the engine finds and leaves outside itself: windows in a pool, pages on disk."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epd_workers.reference.cache.disk import DiskPages
from epd_workers.reference.engine.space import namespace
from epd_workers.reference.engine.store import Stores
from epd_workers.swapool.connection import Connection
from epd_workers.swapool.metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from epd_workers.reference.engine.request import Limits
    from epd_workers.reference.model.loaded import LoadedModel
    from epd_workers.reference.serving.options import Options


class Tiers:
    """The window pool and the folder of pages that a server is configured with.

    Neither has to be there for the server to work: what is missing costs time, never a request.

    Args:
        options: How the server was started.
        model: The weights.
        limits: What bounds the engine.
        registry: Where both count.
    """

    def __init__(self, options: Options, model: LoadedModel, limits: Limits, registry: CollectorRegistry) -> None:
        self._pool: Connection | None = None
        self._disk: DiskPages | None = None
        self._approximate = options.swa_pool_publish == "all"
        if options.swa_pool_config is None and options.kv_disk_path is None:
            return
        space = namespace(model, limits, options.tenant, options.served_model_name)
        if options.kv_disk_path is not None:
            self._disk = DiskPages(
                Path(options.kv_disk_path),
                space.digest,
                model.geometry(limits.page_size, limits.cache_type).page_bytes,
                limit=options.kv_disk_bytes,
                hours=options.kv_disk_hours,
                registry=registry,
            )
        if options.swa_pool_config is not None:
            # Nobody would look for what a decode server left in its own memory.
            self._pool = Connection(
                Path(options.swa_pool_config), space, Metrics(registry), remote_only=options.role == "decode"
            )

    @property
    def stores(self) -> Stores:
        """As the engine takes them."""
        return Stores(windows=self._pool, pages=self._disk, approximate=self._approximate)

    def state(self) -> dict[str, Any]:
        """As `/server_info` reports it."""
        pool = self._pool and self._pool.report()
        return {"swa_pool": pool and asdict(pool), "kv_disk": self._disk and asdict(self._disk.stats)}

    def close(self) -> None:
        """Give what was handed in a moment to be stored, then close both. Waits a few seconds at most."""
        # Pages first: a window is of no use without them.
        if self._disk is not None:
            self._disk.close()
        if self._pool is not None:
            self._pool.close()
