"""What the engine's caches and bounded replay did, for `/server_info` and `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from epd_workers.reference.cache.geometry import Geometry
    from epd_workers.reference.engine.request import Load, ReplayState


@dataclass(frozen=True)
class Half:
    """Bounded replay of one half of the layers.

    Attributes:
        active: It has made a difference since the start.
        reason: Why not, in CamelCase; empty if active.
        run: Rows times layers of prompts that this half ran.
        skipped: Rows times layers that replay spared it.
    """

    active: bool
    reason: str
    run: int
    skipped: int


@dataclass(frozen=True)
class CacheReport:
    """One moment of an engine.

    Attributes:
        state: Of bounded replay.
        load: Of the engine.
        geometry: Of its caches.
        encoder_layers: Layers of the encoder half.
    """

    state: ReplayState
    load: Load
    geometry: Geometry
    encoder_layers: int

    @property
    def decoder(self) -> Half:
        """Decoder bounded replay: late layers on the last rows only."""
        work, state = self.state.work, self.state
        return Half(state.decoder_active, state.decoder_reason, work.decoder, work.skipped)

    @property
    def encoder(self) -> Half:
        """Encoder bounded replay: of a prefix hit only the window's rows run, and run again."""
        state = self.state
        # Not from the tree's counters: a hit counts there before its rows run, and a counter must never go back.
        spared = state.spared * self.encoder_layers
        return Half(state.encoder_active, state.encoder_reason, state.work.encoder, spared)

    def replay(self) -> dict[str, Any]:
        """As `/server_info` reports it, with counts of rows times layers for the decoder half."""
        decoder, encoder = self.decoder, self.encoder
        return {
            "decoder": {
                "active": decoder.active,
                "reason": decoder.reason,
                "preset": self.state.preset,
                "rows_run": decoder.run,
                "rows_skipped": decoder.skipped,
            },
            "encoder": {
                "active": encoder.active,
                "reason": encoder.reason,
                "rows_replayed": self.state.work.replayed,
                "windows_adopted": self.state.adopted,
                "rows_avoided": self.state.avoided,
            },
        }

    def cache(self) -> dict[str, Any]:
        """Sizes of the caches and what the prefix tree did, as `/server_info` reports it."""
        geometry, load = self.geometry, self.load
        return {
            "bytes_per_token": float(geometry.bytes_per_token),
            "window_bytes_per_request": geometry.window_bytes_per_request,
            "state_bytes_per_request": geometry.pending_bytes,
            "page_bytes": geometry.page_bytes,
            "window_page_bytes": geometry.window_page_bytes,
            "cached_tokens": load.cached_tokens,
            "lookups": load.lookups,
            "hits": load.hits,
            "hit_tokens": load.hit_tokens,
            "evicted_pages": load.evicted_pages,
            "evicted_window_pages": load.evicted_window_pages,
        }

    @property
    def hit_rate(self) -> float:
        """Prompt tokens found in the cache, of all since the start."""
        seen = self.load.hit_tokens + self.load.prompt_tokens
        return self.load.hit_tokens / seen if seen else 0.0

    def families(self, model: str) -> list[Metric]:
        """As metrics; under SGLang's names where it has them."""
        load = self.load
        cached = CounterMetricFamily(
            "sglang:cached_tokens", "Prompt tokens found in the prefix cache", labels=["model_name", "cache_source"]
        )
        cached.add_metric([model, "device"], load.hit_tokens)
        evicted = CounterMetricFamily(
            "sglang:evicted_tokens", "Tokens whose pages the prefix cache gave up", labels=["model_name"]
        )
        evicted.add_metric([model], load.evicted_pages * self.geometry.page_size)
        pages = CounterMetricFamily(
            "epd_cache_evicted_pages", "Pages that the prefix cache gave up for room", labels=["pool"]
        )
        pages.add_metric(["global"], load.evicted_pages)
        pages.add_metric(["window"], load.evicted_window_pages)
        asked = CounterMetricFamily("epd_cache_lookups", "Prompts looked up in the prefix cache", labels=["result"])
        asked.add_metric(["hit"], load.hits)
        asked.add_metric(["miss"], load.lookups - load.hits)
        held = GaugeMetricFamily("epd_cache_held_tokens", "Tokens whose pages the prefix cache holds")
        held.add_metric([], load.cached_tokens)
        return [cached, evicted, pages, asked, held, *self._replay_families()]

    def _replay_families(self) -> list[Metric]:
        rows = CounterMetricFamily(
            "epd_replay_layer_rows",
            "Rows times layers of prompts that ran, and that bounded replay spared",
            labels=["half", "state"],
        )
        active = GaugeMetricFamily(
            "epd_replay_active", "Whether bounded replay has made a difference, or why not", labels=["half", "reason"]
        )
        for name, half in (("encoder", self.encoder), ("decoder", self.decoder)):
            rows.add_metric([name, "run"], half.run)
            rows.add_metric([name, "skipped"], half.skipped)
            active.add_metric([name, half.reason], float(half.active))
        return [rows, active]
