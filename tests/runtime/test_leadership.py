"""The real thread and the real clock, against the smallest server that can hold a Lease."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from epd_operator.kube import CredentialError
from epd_operator.runtime.config import Config
from epd_operator.runtime.leadership import Leadership
from epd_operator.runtime.lease import Timing
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMING = Timing(duration=2.0, deadline=1.2, retry=0.2)


class Holder(ThreadingHTTPServer):
    lease: dict[str, Any] | None = None
    version = 0


class Handler(BaseHTTPRequestHandler):
    server: Holder

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _store(self) -> None:
        self.server.version += 1
        lease = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        lease["metadata"]["resourceVersion"] = str(self.server.version)
        self.server.lease = lease
        self._answer(200, lease)

    def do_GET(self) -> None:
        lease = self.server.lease
        self._answer(404, {"kind": "Status"}) if lease is None else self._answer(200, lease)

    def do_POST(self) -> None:
        self._store()

    def do_PUT(self) -> None:
        self._store()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def holder() -> Iterator[Holder]:
    server = Holder(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def leadership(port: int, lost: list[str]) -> Leadership:
    def load() -> Any:
        return SimpleNamespace(
            host=f"http://127.0.0.1:{port}",
            ssl_ca_cert=None,
            cert_file=None,
            key_file=None,
            verify_ssl=True,
            tls_server_name=None,
            proxy=None,
            get_api_key_with_prefix=lambda _: None,
        )

    config = Config(namespace="ns", identity="me", timing=TIMING)
    return Leadership(
        config,
        load,
        observe=lambda *_: None,
        changed=lambda _: None,
        lost=lambda: lost.append(threading.current_thread().name),
    )


async def test_a_main_loop_that_lags_does_not_lose_the_lease(holder: Holder) -> None:
    lost: list[str] = []
    actual = leadership(holder.server_port, lost)
    await actual.acquire()
    time.sleep(2 * TIMING.deadline)  # noqa: ASYNC251 - the lag that is tested
    assert actual.holds()
    assert lost == []
    await actual.release()
    assert not actual.holds()
    assert holder.lease is not None
    assert holder.lease["spec"]["holderIdentity"] == ""
    await actual.close()


async def test_a_lost_lease_is_told_in_the_thread_at_once(holder: Holder) -> None:
    lost: list[str] = []
    actual = leadership(holder.server_port, lost)
    await actual.acquire()
    holder.shutdown()
    holder.server_close()
    until(lambda: lost, TIMING.deadline + 10)  # the main loop does not run for this
    assert lost == ["lease"]
    assert not actual.holds()
    await actual.close()


async def test_no_configuration_is_an_error_of_the_caller() -> None:
    def load() -> Any:
        raise CredentialError("nothing there")

    actual = Leadership(Config(), load, observe=lambda *_: None, changed=lambda _: None, lost=lambda: None)
    with pytest.raises(CredentialError):
        await actual.acquire()
    await asyncio.wait_for(actual.close(), 5)
