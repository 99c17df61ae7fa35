"""Store and load pages with SGLang's own storage code. Runs inside the engine's own environment, on a CPU.

What the engine does between its command line and the store is done by the engine: its parser reads the flags, its
controller the storage's configuration, its factory makes the storage, its host pool lays the pages out. Made up are the
names that a prompt gives to its pages, which depend on the tokens alone (the engine would compile its hash first), and
what the pages hold: each row tells its layout, its layer and its token, so that a row in the wrong place is known.
A JSON line ``{"argv", "layout", "tokens", "store"}`` in, a JSON line with what came of it out, each from a child of its
own, as each server is a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

PAGE = 256
LAYERS = 40
BEFORE = 0xEE
"""What every byte of the host pool is before something is loaded into it."""
_CACHE = "sglang.srt.mem_cache"


def _named(module: str) -> Any:
    return importlib.import_module(f"{_CACHE}.{module}")


def parsed(argv: Sequence[str]) -> Any:
    """The values of a command line, as the engine's parser reads it."""
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser.parse_args(list(argv))


class Server:
    """The part of a prefill server that stores pages and finds them again.

    Args:
        argv: Its command line, behind the program.
        layout: How its rows are laid out: `v4`, `v41`.
        pages: As many as its host memory holds.
    """

    def __init__(self, argv: Sequence[str], layout: str, pages: int) -> None:
        args = parsed(argv)
        controller = _named("hybrid_cache.hybrid_cache_controller").HybridCacheController
        extra, *_ = controller.parse_storage_backend_extra_config(args.hicache_storage_backend_extra_config)
        self._names = _named("hicache_storage")
        self._pool = _host_pool(layout, pages)
        self._pages = pages
        config = self._names.HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=True,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name=args.served_model_name,
            extra_config=extra,
        )
        anchor = _named("memory_pool_host").LogicalHostPool(pages * PAGE, PAGE)
        factory = _named("storage.backend_factory").StorageBackendFactory
        self.storage = factory.create_backend(args.hicache_storage_backend, config, anchor)
        self.storage.register_mem_pool_host(anchor)
        self.storage.register_mem_host_pool_v2(self._pool, self._names.PoolName.SWA)

    def store(self, tokens: Sequence[int]) -> list[bool]:
        """Store the pages of a prompt, as rows that tell where they belong."""
        self._pool.kv_buffer.copy_(self._right(tokens))
        done: dict[Any, list[bool]] = self.storage.batch_set_v2([self._transfer(tokens)])
        return done[self._names.PoolName.SWA]

    def load(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Load them.

        Returns:
            `found`: usable pages, as the storage says before it loads; `loaded`: for each page whether it says that it
            was loaded; `changed` and `right`: how many bytes of the host memory are others than before, and how many
            rows are what they should be; `rows`: of how many.
        """
        transfer = self._transfer(tokens)
        result = self.storage.batch_exists_v2(transfer.keys, [transfer])
        loaded = self.storage.batch_get_v2([transfer])[self._names.PoolName.SWA]
        here, right = self._pool.kv_buffer, self._right(tokens)
        return {
            "found": result.kv_hit_pages,
            "loaded": loaded,
            "changed": int((here != BEFORE).sum()),
            "right": int((_rows(here) == _rows(right)).all(-1).sum()),
            "rows": _rows(here).shape[:-1].numel(),
        }

    def close(self) -> None:
        """Leave the store."""
        self.storage.store.close()

    def _transfer(self, tokens: Sequence[int]) -> Any:
        torch = importlib.import_module("torch")
        chain = hashlib.sha256()
        names = []
        for first in range(0, len(tokens), PAGE):
            chain.update(repr(tokens[first : first + PAGE]).encode())
            names.append(chain.hexdigest())
        return self._names.PoolTransfer(
            name=self._names.PoolName.SWA,
            host_indices=torch.arange(self._pages * PAGE),
            keys=names,
            hit_policy=self._names.PoolHitPolicy.ALL_PAGES,
        )

    def _right(self, tokens: Sequence[int]) -> torch.Tensor:
        """What the pages of a prompt hold in this layout, [pages, layers, bytes of a page]."""
        library = importlib.import_module("torch")
        where = library.arange(self._pages * LAYERS * PAGE).reshape(self._pages, LAYERS, PAGE, 1)
        width = self._pool.item_bytes // PAGE
        # No byte of these is BEFORE, and rows of different widths agree nowhere for long.
        marks = (where * 31 + library.arange(width) * 7 + width + sum(tokens)) % 199
        return cast("torch.Tensor", marks.to(library.uint8).reshape(self._pages, LAYERS, -1))


def _host_pool(layout: str, pages: int) -> Any:
    torch = importlib.import_module("torch")
    layouts = importlib.import_module("sglang.kernels.ops.attention.dsv4.kv_layout")
    item = layouts.KVLayout.parse(layout).page_bytes(PAGE)
    pool = _named("memory_pool_host").DeepSeekV4PagedHostPool(
        pool_name="swa",
        device_buffers=[torch.zeros(1, item, dtype=torch.uint8) for _ in range(LAYERS)],
        item_bytes=item,
        num_host_pages=pages,
        slot_page_size=PAGE,
        layout="page_first",
        pin_memory=False,
    )
    pool.kv_buffer.fill_(BEFORE)
    return pool


def _rows(pages: torch.Tensor) -> torch.Tensor:
    return pages.reshape(*pages.shape[:2], PAGE, -1)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Do what one line asks for."""
    tokens = asked["tokens"]
    server = Server(asked["argv"], asked["layout"], len(tokens) // PAGE)
    done = {"prefix": server.storage.config_prefix}
    done |= {"stored": server.store(tokens)} if asked["store"] else server.load(tokens)
    server.close()
    return done


def attempt(asked: dict[str, Any]) -> dict[str, Any]:
    """The same, or what went wrong: a child's standard error is nobody's."""
    try:
        return answer(asked)
    except Exception:  # noqa: BLE001 - the client gets it
        return {"error": traceback.format_exc()}


def main() -> None:
    """Answer lines until there are no more."""
    sys.path.append(str(Path(__file__).parent))
    engine = importlib.import_module("engine")
    engine.stand_in(engine.ABSENT)
    for module in ("hybrid_cache.hybrid_cache_controller", "storage.mooncake_store.mooncake_store", "memory_pool_host"):
        _named(module)
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(f"{json.dumps(engine.in_child(lambda asked=asked: attempt(asked)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main()
