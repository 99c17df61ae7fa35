"""Two layouts in one store: SGLang reads one as the other without a word, unless the operator keeps them apart."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epd_operator.engines.sglang.storage import TAG
from epd_operator.engines.validation import validate
from epd_workers.swapool.address import engine
from epd_workers.swapool.header import seal
from epd_workers.swapool.key import Key
from epd_workers.swapool.pool import WindowPool
from tests.support.polling import until
from tests.support.rendered import containers, line
from tests.support.swapool.servers import MooncakeMaster, MooncakeStore
from tests.support.swapool.windows import PATIENT, RELEASED, count, rows
from tools.differential import environment
from tools.differential.storage import LAYERS, PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epd_workers.swapool.key import Namespace

STORAGE = Path(environment.__file__).with_name("storage.py")
CONFIG = "--hicache-storage-backend-extra-config"
PAGES = 3
PROMPT = list(range(PAGES * PAGE))
BYTES = {"v41": PAGES * LAYERS * PAGE * 528, "v4": PAGES * LAYERS * PAGE * 585}
"""Bytes of three pages, those included that pad a page."""
MEMORY = 256 << 20
BASE: dict[str, Any] = {
    "apiVersion": "serving.epd.dev/v1alpha1",
    "kind": "DeepSeekV41Deployment",
    "metadata": {"name": "chat", "namespace": "llm"},
    "spec": {
        "model": {"path": "deepseek-ai/DeepSeek-V4.1-Flash", "revision": "rev-a", "servedName": "dsv41"},
        "engine": {"type": "SGLang", "version": "0.5.23", "image": "registry.example/sglang:v0.5.23"},
        "roles": {
            "prefill": {
                "resources": {"gpu": 4, "memory": "512Gi", "rdma": 1},
                "args": {
                    "tp-size": 4,
                    "enable-hierarchical-cache": True,
                    "hicache-storage-backend": "mooncake",
                    "hicache-storage-prefetch-policy": "wait_complete",
                },
            },
            "decode": {"resources": {"gpu": 4, "memory": "512Gi", "rdma": 1}, "args": {"tp-size": 4}},
        },
    },
}


def deployment(name: str, platform: str, layout: str, namespace: str = "llm") -> dict[str, Any]:
    """A fleet of one generation of GPUs: the layout that its kernels like is another one."""
    document = copy.deepcopy(BASE)
    document["metadata"] = {"name": name, "namespace": namespace}
    document["spec"]["engine"]["platform"] = platform
    for role in document["spec"]["roles"].values():
        role["env"] = {"SGLANG_DSV4_KV_LAYOUT": layout}
        role["args"]["dsv4-attn-backend"] = "flashmla"
    assert validate(document).accepted, validate(document).findings
    return document


BLACKWELL = deployment("blackwell", "cuda-sm100", "v41")
HOPPER = deployment("hopper", "cuda-sm90", "v4")
TENANT = deployment("blackwell", "cuda-sm100", "v41", "other")


def rendered(document: dict[str, Any]) -> tuple[str, ...]:
    """The command line of its prefill pods, as the operator makes it."""
    (container,) = (container for name, container in containers(document) if "-prefill-" in name)
    return line(container)


def untagged(argv: Sequence[str]) -> list[str]:
    """The same as its user wrote it: where the store is, says the environment."""
    at = argv.index(CONFIG)
    assert json.loads(argv[at + 1]).keys() == {TAG}
    return [*argv[:at], *argv[at + 2 :]]


class Engine:
    """SGLang's storage code, in a process of its own for every question."""

    def __init__(self, master: str, log: Path) -> None:
        env = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        env |= {
            "MOONCAKE_MASTER": master,
            "MOONCAKE_PROTOCOL": "tcp",
            "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0",
            "OMP_NUM_THREADS": "1",
            **environment.CACHES,
        }
        self._log = log
        with log.open("wb") as message:
            self._process = subprocess.Popen(
                [str(environment.interpreter()), "-P", str(STORAGE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=message,
                text=True,
                env=env,
            )

    def ask(self, argv: Sequence[str], layout: str, *, store: bool) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        question = {"argv": list(argv), "layout": layout, "tokens": PROMPT, "store": store}
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer: dict[str, Any] | None = json.loads(self._process.stdout.readline() or "null")
        assert answer, self._log.read_text(errors="replace")[-4000:]
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def master() -> Iterator[MooncakeMaster]:
    with tempfile.TemporaryDirectory(prefix="namespace-") as folder:
        master = MooncakeMaster(Path(folder) / "master.log")
        store = MooncakeStore(Path(folder) / "store.log", master.address, MEMORY)
        yield master
        store.kill()
        master.kill()


@pytest.fixture(scope="module")
def sglang(master: MooncakeMaster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    asked = Engine(master.address, tmp_path_factory.mktemp("storage") / "engine.log")
    yield asked
    asked.close()


def test_without_a_name_of_ones_own_the_engine_reads_another_layout_as_its_own(sglang: Engine) -> None:
    """The danger: every page is told to be there, and not one row of them is right."""
    writer, reader = untagged(rendered(BLACKWELL)), untagged(rendered(HOPPER))
    assert sglang.ask(writer, "v41", store=True) == {"prefix": "dsv41", "stored": [True] * PAGES}
    again = sglang.ask(writer, "v41", store=False)
    assert again["right"] == again["rows"] == PAGES * LAYERS * PAGE
    read = sglang.ask(reader, "v4", store=False)
    assert (read["found"], read["loaded"]) == (PAGES, [True] * PAGES)
    assert read["changed"] == BYTES["v41"]
    assert read["changed"] < BYTES["v4"]
    assert read["right"] == 0


def test_as_the_operator_starts_them_deployments_miss_each_others_pages(sglang: Engine) -> None:
    """D7, D14: what was stored is found by its own deployment, and by no other, of another layout or another tenant."""
    writer = rendered(BLACKWELL)
    tag = json.loads(writer[writer.index(CONFIG) + 1])[TAG]
    assert sglang.ask(writer, "v41", store=True) == {"prefix": f"{tag}_dsv41", "stored": [True] * PAGES}
    for document, layout in ((HOPPER, "v4"), (TENANT, "v41")):
        read = sglang.ask(rendered(document), layout, store=False)
        assert (read["found"], read["loaded"], read["changed"]) == (0, [False] * PAGES, 0)
    own = sglang.ask(writer, "v41", store=False)
    assert (own["found"], own["right"]) == (PAGES, own["rows"])


V41 = replace(RELEASED, layout="v41", row_bytes=528, tenant="llm/blackwell")
V4 = replace(RELEASED, layout="v4", row_bytes=584, tenant="llm/hopper")
OF_ONE_SIZE = replace(V41, layout="v41_new")


@pytest.mark.parametrize("other", [V4, OF_ONE_SIZE], ids=["another size", "the same size"])
def test_the_window_pool_refuses_what_the_engine_read(master: MooncakeMaster, other: Namespace) -> None:
    """Two layouts have two names; and under one name the header tells them apart, whatever their sizes."""
    address = f"mooncake://{master.address}"
    written, wanted = (Key(space, b"\x07" * 32, 1024) for space in (V41, other))
    pool = WindowPool(engine(address), max(V41.largest, other.largest))
    until(lambda: _holds(pool, written), 20)
    assert pool.get(wanted, PATIENT) is None
    assert count(pool, "get", "mismatch") == 0, "there is nothing under that name"

    server = engine(address)
    (session,) = server.sessions(1, 1 << 22)
    session.open(time.monotonic() + 20)
    data = rows(written)
    head = seal(written, data, ttl=300, created=time.time(), replayed=False)
    session.write(wanted.text, head, data, 300, time.monotonic() + PATIENT)
    assert pool.get(wanted, PATIENT) is None
    assert count(pool, "get", "mismatch") == 1, "what is under that name is another layout's"
    session.close()
    server.close()
    pool.close()


def _holds(pool: WindowPool, name: Key) -> bool:
    """Whether a window comes back that was just handed in; joining the store takes a moment."""
    pool.put(name, rows(name), 300)
    pool.drain(PATIENT)
    return pool.get(name, PATIENT) == rows(name)
