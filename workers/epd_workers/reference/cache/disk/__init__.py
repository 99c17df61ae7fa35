"""Pages of global entries on disk: what returning conversations find days later, on whichever server they return to.

Content-addressed files under one folder that several servers may share, and that may vanish, fill up or lie at any
time: that costs hits, never a request. The tricky idea: nothing is ever agreed on between the servers. A name says
everything that the bytes depend on, a rename makes them appear whole, a checksum finds those that did not survive, and
the oldest files go by a single horizon that any server may compute.
"""

from epd_workers.reference.cache.disk.fetch import Fetch
from epd_workers.reference.cache.disk.page import StoredPage
from epd_workers.reference.cache.disk.tally import DiskStats
from epd_workers.reference.cache.disk.tier import DiskPages

__all__ = ["DiskPages", "DiskStats", "Fetch", "StoredPage"]
