"""A page server and receivers for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epd_workers.reference.transfer.layout import Layout
from epd_workers.reference.transfer.receiver import Receiver

if TYPE_CHECKING:
    from epd_workers.reference.transfer.sender import PageServer
    from epd_workers.reference.transfer.timeouts import Timeouts

LAYOUT = Layout(page_size=4, page_bytes=64, window_page_bytes=48, state_bytes=16, kv_cache_dtype="fp4", kv_layout="a")


@dataclass
class Pair:
    """A page server on a real socket and receivers for it."""

    server: PageServer
    port: int
    timeouts: Timeouts
    layout: Layout = LAYOUT
    max_pages: int = 8
    rooms: list[int] = field(default_factory=list)

    def receiver(self, layout: Layout | None = None, timeouts: Timeouts | None = None) -> Receiver:
        return Receiver(layout or self.layout, self.max_pages, "decode-1", timeouts or self.timeouts)
