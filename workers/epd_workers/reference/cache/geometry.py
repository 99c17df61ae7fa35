"""Bytes of everything a cache holds, derived from the model's sizes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, Self, get_args

from epd_kernels.formats.reference import BFLOAT16, INDEX, MAIN, WINDOW

if TYPE_CHECKING:
    from epd_kernels.formats.reference import Codec
    from epd_workers.reference.model.config import Config

CacheType = Literal["fp4", "bf16"]
_CODECS: Final[dict[CacheType, tuple[Codec, Codec, Codec]]] = {
    "fp4": (MAIN, INDEX, WINDOW),
    "bf16": (BFLOAT16, BFLOAT16, BFLOAT16),
}


@dataclass(frozen=True)
class Owner:
    """A layer that writes global entries.

    Attributes:
        layer: Its number.
        ratio: Tokens per entry.
    """

    layer: int
    ratio: int


@dataclass(frozen=True)
class Line:
    """One line of the byte table.

    Attributes:
        scope: What the bytes are counted for.
        item: What they hold.
        bytes: How many; a fraction where several tokens share an entry.
    """

    scope: Literal["token", "request", "page", "pool"]
    item: str
    bytes: Fraction


@dataclass(frozen=True)
class Geometry:
    """Sizes and encodings of all caches of one model.

    Attributes:
        page_size: Tokens in a page, a multiple of every owner's ratio.
        window: Rows of the sliding window.
        layers: Layers that keep windows, draft stages excepted.
        draft_stages: Draft stages, each with a ring of `window` rows.
        owners: Layers that write global entries, in order.
        head_dim: Values of a main entry and of a window row.
        index_dim: Values of an index key.
        cache_type: `fp4`: main entries and index keys FP4, windows FP8; `bf16`: everything bfloat16.
        checkpoint: Digest of the weights.
    """

    page_size: int
    window: int
    layers: int
    draft_stages: int
    owners: tuple[Owner, ...]
    head_dim: int
    index_dim: int
    cache_type: CacheType
    checkpoint: str

    @classmethod
    def of(cls, config: Config, page_size: int, cache_type: CacheType = "fp4", checkpoint: str = "") -> Self:
        """Derive the sizes from a model's configuration.

        Raises:
            ValueError: Names every argument that cannot be used and the way out.
        """
        text = config.text
        ratios = sorted({plan.ratio for plan in text.kv_owners})
        faults = []
        if page_size < 1 or any(page_size % ratio for ratio in ratios):
            faults.append(
                f"page_size is {page_size}: must be a positive multiple of every compress ratio "
                f"({', '.join(map(str, ratios))}); choose one such as {_nearest(page_size, ratios)}"
            )
        if cache_type not in get_args(CacheType):
            faults.append(f"cache_type is {cache_type!r}: must be one of {', '.join(get_args(CacheType))}")
        if faults:
            raise ValueError("; ".join(faults))
        return cls(
            page_size=page_size,
            window=text.sliding_window,
            layers=text.num_hidden_layers,
            draft_stages=text.num_nextn_predict_layers,
            owners=tuple(Owner(plan.index, plan.ratio) for plan in text.kv_owners),
            head_dim=text.head_dim,
            index_dim=text.index_head_dim,
            cache_type=cache_type,
            checkpoint=checkpoint,
        )

    @property
    def main_codec(self) -> Codec:
        """Encoding of main entries."""
        return _CODECS[self.cache_type][0]

    @property
    def index_codec(self) -> Codec:
        """Encoding of index keys."""
        return _CODECS[self.cache_type][1]

    @property
    def window_codec(self) -> Codec:
        """Encoding of window rows, the draft rings' too."""
        return _CODECS[self.cache_type][2]

    @property
    def main_bytes(self) -> int:
        """Bytes of a main entry: 288 at released sizes in FP4."""
        return self.main_codec.width(self.head_dim)

    @property
    def index_bytes(self) -> int:
        """Bytes of an index key: 68 at released sizes in FP4."""
        return self.index_codec.width(self.index_dim)

    @property
    def window_bytes(self) -> int:
        """Bytes of one row of one layer's window: 528 at released sizes in FP8."""
        return self.window_codec.width(self.head_dim)

    @property
    def paired_owners(self) -> tuple[Owner, ...]:
        """Owners whose last token may wait for its partner."""
        return tuple(owner for owner in self.owners if owner.ratio > 1)

    @property
    def bytes_per_token(self) -> Fraction:
        """Global bytes of a token: (main + index) / ratio, summed over the owners; 890 at released sizes in FP4."""
        return sum((Fraction(self.main_bytes + self.index_bytes, owner.ratio) for owner in self.owners), Fraction(0))

    @property
    def page_bytes(self) -> int:
        """Global bytes of a page, all owners together."""
        return int(self.bytes_per_token * self.page_size)

    @property
    def window_page_bytes(self) -> int:
        """Bytes of a window page, all layers together."""
        return self.layers * self.page_size * self.window_bytes

    @property
    def window_bytes_per_request(self) -> int:
        """Window rows that a running request reads, all layers: 2,703,360 at released sizes in FP8."""
        return self.layers * self.window * self.window_bytes

    @property
    def draft_bytes_per_request(self) -> int:
        """The draft stages' rings: 202,752 at released sizes in FP8."""
        return self.draft_stages * self.window * self.window_bytes

    @property
    def pending_bytes(self) -> int:
        """The float32 (value, gate) of an unpaired last token, all owners of pairs: 12,288 at released sizes."""
        return sum(2 * self.head_dim * 4 for _ in self.paired_owners)

    def state_bytes(self, length: int) -> int:
        """Bytes of the state that goes with a sequence of this length: the pending pairs of an odd one, else none."""
        return self.pending_bytes if length % 2 else 0

    def window_pages_per_request(self, chunk: int) -> int:
        """Most window pages of a request that runs at most `chunk` rows a step and releases what it has passed.

        A step touches window + chunk consecutive positions, which begin anywhere in a page.
        """
        return (self.window + chunk - 2) // self.page_size + 2

    @property
    def layout(self) -> str:
        """Digest of everything the bytes depend on: both ends of a transfer must have the same one."""
        facts = {
            "cache_type": self.cache_type,
            "widths": [self.main_bytes, self.index_bytes, self.window_bytes],
            "page_size": self.page_size,
            "window": self.window,
            "layers": self.layers,
            "owners": [[owner.layer, owner.ratio] for owner in self.owners],
            "dims": [self.head_dim, self.index_dim],
            "draft_stages": self.draft_stages,
            "checkpoint": self.checkpoint,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def table(self, pages: int = 0, window_pages: int = 0) -> tuple[Line, ...]:
        """Every kind of bytes and what it is counted for; pools of this many pages."""
        main, index = self.main_bytes, self.index_bytes
        lines = []
        for owner in self.owners:
            lines += [
                Line("token", f"layer {owner.layer} main, ratio {owner.ratio}", Fraction(main, owner.ratio)),
                Line("token", f"layer {owner.layer} index, ratio {owner.ratio}", Fraction(index, owner.ratio)),
            ]
        lines += [
            Line("token", "all global entries", self.bytes_per_token),
            Line("request", "windows", Fraction(self.window_bytes_per_request)),
            Line("request", "draft rings", Fraction(self.draft_bytes_per_request)),
            Line("request", "pending pairs", Fraction(self.pending_bytes)),
            Line("page", "global entries", Fraction(self.page_bytes)),
            Line("page", "windows", Fraction(self.window_page_bytes)),
            Line("pool", "global entries", Fraction(self.page_bytes * pages)),
            Line("pool", "windows", Fraction(self.window_page_bytes * window_pages)),
        ]
        return tuple(lines)


def _nearest(page_size: int, ratios: list[int]) -> int:
    """The smallest usable page size not below `page_size`."""
    size = max(1, page_size)
    while any(size % ratio for ratio in ratios):
        size += 1
    return size
