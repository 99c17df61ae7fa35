"""One batch with and without replay: pairs of runs, and the ratios between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.replay.model import lengths, prompts
from bench.spread import Spread
from epd_workers.reference.model.replay import PRESETS, tail_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.replay.meter import Cost, Meter
    from epd_workers.reference.model.config import TextConfig
    from epd_workers.reference.model.loaded import LoadedModel

TIMED = "0.5.23"
COUNTED = "dsv41-37ae292e"


class Miscount(AssertionError):
    """The rows that ran are not those that the rule of replay says."""


@dataclass(frozen=True)
class Point:
    """A batch and what it cost.

    Attributes:
        sizes: Prompt tokens of each request.
        pairs: (replay off, replay on with the timed preset), measured one right after the other.
        counts: Rows times layers, by preset; "off" without replay.
    """

    sizes: tuple[int, ...]
    pairs: tuple[tuple[Cost, Cost], ...]
    counts: dict[str, int]

    @property
    def rows(self) -> int:
        """E, prompt tokens of all requests."""
        return sum(self.sizes)

    @property
    def theory(self) -> float:
        """Rows times layers without replay per rows times layers with it, both counted."""
        return self.counts["off"] / self.counts[TIMED]

    @property
    def whole(self) -> Spread:
        """Ratio off / on of the whole prefills, as timed."""
        return Spread.of([off.seconds / on.seconds for off, on in self.pairs])

    @property
    def layers(self) -> Spread:
        """The same of the layers alone: what both runs share is subtracted from each."""
        return Spread.of([off.layers / on.layers for off, on in self.pairs])

    @property
    def linear(self) -> Spread:
        """The same without index selection."""
        return Spread.of([off.linear / on.linear for off, on in self.pairs])

    def to_json(self) -> dict[str, Any]:
        """Every figure, the single runs' too."""
        return {
            "requests": len(self.sizes),
            "rows": self.rows,
            "prompt_tokens": list(self.sizes),
            "rows_x_layers": self.counts,
            "theory": round(self.theory, 4),
            "ratio_as_timed": self.whole.to_json(),
            "ratio_shared_subtracted": self.layers.to_json(),
            "ratio_shared_and_selection_subtracted": self.linear.to_json(),
            "pairs": [{"off": _seconds(off), "on": _seconds(on)} for off, on in self.pairs],
        }


def _seconds(cost: Cost) -> dict[str, float]:
    figures = [("whole", cost.seconds), *cost.pieces.items(), ("layers", cost.linear)]
    return {name: round(value, 6) for name, value in figures}


def expected(text: TextConfig, sizes: Sequence[int], name: str) -> tuple[int, ...]:
    """Rows that each layer must run under a preset ("off": without replay)."""
    preset = PRESETS.get(name)
    first_late = text.num_hidden_layers if preset is None else preset.first_late(text)
    late = sum(tail_rows(preset, size, text.sliding_window, whole=False) for size in sizes)
    return (sum(sizes),) * first_late + (late,) * (text.num_hidden_layers - first_late)


def checked(text: TextConfig, sizes: Sequence[int], name: str, cost: Cost) -> int:
    """Rows times layers of a run.

    Raises:
        Miscount: A layer ran other rows than the rule says, or the forward reports other work than it did.
    """
    rule = expected(text, sizes, name)
    reported = cost.work.encoder + cost.work.decoder
    if cost.rows != rule or reported != cost.rows_x_layers:
        raise Miscount(f"replay {name} over {list(sizes)}: ran {cost.rows}, rule {rule}, reported {reported} in all")
    return cost.rows_x_layers


def measure(
    model: LoadedModel, meter: Meter, *, rows: int, requests: int, pairs: int, tell: Callable[[str], None]
) -> Point:
    """Time alternating pairs, every second one in the other order, after one run of each kind that warms up."""
    sizes = lengths(rows, requests)
    batch = prompts(model, sizes)
    text = model.weights.config.text

    def run(name: str) -> Cost:
        cost = meter.measure(batch, PRESETS.get(name))
        checked(text, sizes, name, cost)
        return cost

    counts = {}
    for name in (COUNTED, "off", TIMED):
        tell(f"warm-up and count, {name}")
        counts[name] = run(name).rows_x_layers
    timed = []
    for number in range(pairs):
        tell(f"pair {number + 1} of {pairs}")
        if number % 2:
            on, off = run(TIMED), run("off")
        else:
            off, on = run("off"), run(TIMED)
        timed.append((off, on))
    return Point(tuple(sizes), tuple(timed), counts)
