from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from epd_operator.kube import Connection, Credential
from epd_operator.kube.kind import POD
from epd_operator.runtime.cache import Cache
from epd_operator.runtime.intake import Intake
from epd_operator.runtime.kopf_watch import HandlerFailures, registry, settings
from epd_operator.runtime.liveness import HANDLER_BOUND, Liveness
from epd_operator.runtime.queue import WorkQueue
from epd_operator.runtime.watch_scope import CUSTOM, WATCHED, Key

if TYPE_CHECKING:
    import kopf


class Loads:
    count = 0

    def __call__(self) -> Any:
        self.count += 1
        return SimpleNamespace(
            host="http://127.0.0.1:1",
            ssl_ca_cert=None,
            cert_file=None,
            key_file=None,
            verify_ssl=True,
            tls_server_name=None,
            proxy=None,
            get_api_key_with_prefix=lambda _: f"Bearer {self.count}",
        )


def handlers(seen: list[tuple[str, str]], cache: Cache) -> tuple[kopf.OperatorRegistry, Connection, Loads]:
    loads = Loads()
    connection = Connection(Credential(loads), user_agent="test")
    intake = Intake(cache, WorkQueue[Key]())
    return registry(connection, intake, lambda kind, ns: seen.append((kind.kind, ns))), connection, loads


async def test_only_event_and_login_handlers_exist_one_per_kind() -> None:
    actual, _, _ = handlers([], Cache())
    private: Any = actual
    watching = private._watching.get_all_handlers()
    assert {handler.id for handler in watching} == {kind.resource for kind in WATCHED}
    assert len(watching) == len(WATCHED)
    for other in (private._indexing, private._spawning, private._changing, private._webhooks):
        assert list(other.get_all_handlers()) == []
    assert [handler.activity.value for handler in private._activities.get_all_handlers()] == ["authentication"]


async def test_handlers_take_note_and_return_nothing() -> None:
    seen: list[tuple[str, str]] = []
    cache = Cache()
    actual, _, _ = handlers(seen, cache)
    private: Any = actual
    pods = next(h for h in private._watching.get_all_handlers() if h.id == POD.resource)
    pod = {"metadata": {"name": "p", "namespace": "ns", "resourceVersion": "1"}}
    assert asyncio.iscoroutinefunction(pods.fn)  # a plain function would run in kopf's thread pool
    assert await pods.fn(event={"type": None, "object": pod}) is None
    assert cache.get(POD, "ns", "p") is not None
    gone = {"metadata": {**pod["metadata"], "resourceVersion": "2"}}
    assert await pods.fn(event={"type": "DELETED", "object": gone}) is None
    assert cache.get(POD, "ns", "p") is None
    assert seen == [("Pod", "ns"), ("Pod", "ns")]


async def test_a_second_log_in_reads_the_credentials_again() -> None:
    actual, connection, loads = handlers([], Cache())
    private: Any = actual
    (login,) = private._activities.get_all_handlers()
    first = await login.fn()
    assert (first.server, loads.count) == ("http://127.0.0.1:1", 1)
    await first.aiohttp_session.close()  # as kopf does before it logs in anew
    second = await login.fn()
    assert loads.count == 2
    assert not second.aiohttp_session.closed
    await connection.close()


def test_kopf_is_told_to_write_scan_and_post_nothing() -> None:
    actual = settings()
    assert not actual.posting.enabled
    assert actual.peering.standalone
    assert actual.scanning.disabled
    assert actual.watching.chunk_size == 500
    assert actual.watching.inactivity_timeout == 70
    assert not actual.watching.initial_streaming


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.resource)
def test_everything_but_custom_resources_is_filtered_by_the_server(kind: Any) -> None:
    selectors: Any = settings().watching.label_selectors
    chosen = [value for key, value in selectors.items() if key.check(_resource(kind))]
    assert chosen == ([] if kind == CUSTOM else ["app.kubernetes.io/managed-by=epd-operator"])


def _resource(kind: Any) -> Any:
    from kopf._cogs.structs.references import Resource  # noqa: PLC0415 - the selector's own input

    return Resource(group=kind.group, version=kind.version, plural=kind.plural, kind=kind.kind, preferred=True)


async def test_events_that_kopf_cannot_handle_end_the_process_life_unless_others_can_be() -> None:
    now = 0.0
    liveness = Liveness(lambda: now)
    logger = logging.getLogger("kopf.objects")
    stumbles = HandlerFailures(liveness.handler_failed)
    logger.addHandler(stumbles)
    try:
        logger.error("Throttling for 1 seconds due to an unexpected error: NameError()")
    finally:
        logger.removeHandler(stumbles)
    now = HANDLER_BOUND + 1
    (fault,) = liveness.faults("lease")
    assert "NameError" in fault
    liveness.handled()
    assert liveness.faults("lease") == []


async def test_an_event_counts_as_handled_only_when_it_was() -> None:
    seen: list[tuple[str, str]] = []
    actual, _, _ = handlers(seen, Cache())
    private: Any = actual
    pods = next(h for h in private._watching.get_all_handlers() if h.id == POD.resource)
    with pytest.raises(KeyError):
        await pods.fn(event={"type": None, "object": {"metadata": {}}})
    assert seen == []
