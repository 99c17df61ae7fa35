from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from epd_workers.registrar.membership import (
    Add,
    Remove,
    Worker,
    difference,
    directory_difference,
    established,
    standings,
)
from epd_workers.registrar.pod import Pod
from tests.support.registrar_values import PORT, pod, worker_for


class FakeList:
    """The router's list as the real one behaves: one worker an address, removal drains first and then vanishes."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers

    def apply(self, pods: list[Pod]) -> int:
        self.workers = [w for w in self.workers if not w.draining]
        actions = difference(pods, self.workers, PORT)
        for action in actions:
            if isinstance(action, Remove):
                self.workers = [replace(w, status="draining") if w.id == action.worker.id else w for w in self.workers]
            else:
                assert action.pod.url(PORT) not in {w.url for w in self.workers}, "the router answers 409"
                self.workers.append(worker_for(action.pod))
        return len(actions)


pods_strategy = st.lists(
    st.builds(
        Pod,
        name=st.uuids().map(str),
        uid=st.uuids().map(str),
        ip=st.sampled_from(["", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]),
        role=st.sampled_from(["encode", "prefill", "decode"]),
        key=st.sampled_from(["", "k1", "k2"]),
        revision=st.just("r"),
        image=st.sampled_from(["sha256:a", "sha256:b"]),
        ready=st.booleans(),
        deleting=st.booleans(),
        created=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
    ),
    max_size=8,
    unique_by=lambda p: p.uid,
)
workers_strategy = st.lists(
    st.builds(
        Worker,
        id=st.uuids().map(str),
        url=st.sampled_from([f"http://10.0.0.{i}:{PORT}" for i in range(1, 6)]),
        role=st.sampled_from(["prefill", "decode"]),
        key=st.sampled_from(["", "k1", "k2"]),
        pod_uid=st.sampled_from(["", "gone"]),
        image=st.sampled_from(["", "sha256:a", "sha256:b"]),
        status=st.sampled_from(["ready", "not_ready", "draining"]),
        load=st.integers(0, 3),
    ),
    max_size=5,
    unique_by=lambda w: w.url,
)


@given(before=pods_strategy, after=pods_strategy, foreign=workers_strategy)
def test_any_change_converges_and_then_rests(before: list[Pod], after: list[Pod], foreign: list[Worker]) -> None:
    router = FakeList(foreign)
    for pods in (before, after):
        # At most: drain what is wrong, forget it, free a key of another digest, add.
        for _ in range(4):
            router.apply(pods)
        assert router.apply(pods) == 0
        judged = standings(pods)
        eligible = {(p.uid, p.url(PORT)) for p in pods if p.role != "encode" and judged[p.uid].eligible}
        assert {(w.pod_uid, w.url) for w in router.workers} == eligible


@given(before=pods_strategy, after=pods_strategy, foreign=workers_strategy)
def test_routed_workers_never_mix_digests_under_a_key(
    before: list[Pod], after: list[Pod], foreign: list[Worker]
) -> None:
    router = FakeList(foreign)
    uids = {p.uid for p in [*before, *after]}
    for pods in (before, after):
        for _ in range(4):
            router.apply(pods)
            routed = [w for w in router.workers if not w.draining and w.pod_uid in uids]
            assert len({(w.key, w.image) for w in routed}) == len({w.key for w in routed})
            for worker in routed:
                match = next(p for p in pods if p.uid == worker.pod_uid)
                assert (worker.key, worker.role) == (match.key, match.role)


@given(pods=pods_strategy)
def test_the_judgement_does_not_depend_on_the_order(pods: list[Pod]) -> None:
    assert standings(pods) == standings(list(reversed(pods)))


def test_nothing_is_sent_while_a_registration_is_pending() -> None:
    p = pod()
    assert difference([p], [], PORT) == (Add(p),)
    assert difference([p], [], PORT, pending={p.url(PORT)}) == ()


def test_a_reused_address_is_freed_first() -> None:
    old, new = pod("old"), pod("new", role="decode")
    assert [type(a) for a in difference([new], [worker_for(old)], PORT)] == [Remove]
    assert difference([new], [worker_for(old, status="draining")], PORT) == ()
    assert difference([new], [], PORT) == (Add(new),)


def test_an_ended_pod_does_not_hold_its_address() -> None:
    ended = pod("ended", deleting=True, created="2026-01-01T00:00:00Z")
    stale = pod("stale", created="2026-01-01T00:00:00Z")
    new = pod("new", created="2026-01-02T00:00:00Z")
    assert difference([ended, stale, new], [], PORT) == (Add(new),)
    assert "newer pod" in standings([stale, new])[stale.uid].reason


def test_every_way_out_of_service_removes_the_worker() -> None:
    p = pod()
    for changed in (
        [],
        [pod(ready=False)],
        [pod(deleting=True)],
        [pod(ip="")],
        [pod(key="")],
        [pod(key="k2")],
        [pod(role="encode")],
    ):
        assert [type(a) for a in difference(changed, [worker_for(p)], PORT)] == [Remove], changed


def test_a_draining_worker_is_not_removed_twice() -> None:
    assert difference([], [worker_for(pod(), status="draining")], PORT) == ()


def test_an_unhealthy_worker_is_left_to_the_health_check() -> None:
    p = pod()
    assert difference([p], [worker_for(p, status="not_ready")], PORT) == ()


def test_the_established_digest_stays_and_the_newer_is_refused() -> None:
    old = [pod("p1"), pod("d1", role="decode", ip="10.0.0.2")]
    new = [
        pod(f"p{i}", image="sha256:b", ip=f"10.0.1.{i}", created="2026-01-02T00:00:00Z", role=role)
        for i, role in enumerate(["prefill", "decode", "decode"], start=2)
    ]
    assert established(old + new) == {"k1": "sha256:a"}
    refused = standings(old + new)[new[0].uid]
    assert refused.state == "refused"
    assert "sha256:b" in refused.reason
    assert "sha256:a" in refused.reason


def test_the_newer_digest_takes_over_when_the_older_cannot_answer() -> None:
    old = [pod("p1")]
    new = [
        pod("p2", image="sha256:b", ip="10.0.0.2", created="2026-01-02T00:00:00Z"),
        pod("d2", image="sha256:b", ip="10.0.0.3", created="2026-01-02T00:00:00Z", role="decode"),
    ]
    assert established(old + new) == {"k1": "sha256:b"}
    # The old worker has to leave before the first of the new build comes.
    first = difference(old + new, [worker_for(old[0])], PORT)
    assert [type(a) for a in first] == [Remove]
    after = difference(old + new, [worker_for(old[0], status="draining")], PORT)
    assert {a.pod.name for a in after if isinstance(a, Add)} == {"p2", "d2"}


def test_digests_of_different_keys_do_not_meet() -> None:
    a, b = pod("a"), pod("b", key="k2", image="sha256:b", ip="10.0.0.2")
    assert {s.state for s in standings([a, b]).values()} == {"eligible"}


def test_encoders_are_no_workers() -> None:
    assert difference([pod(role="encode")], [], PORT) == ()


def test_a_directory_gets_what_it_lacks_and_loses_what_left() -> None:
    assert directory_difference({"a", "b"}, ["b", "c"]) == (["a"], ["c"])
    assert directory_difference({"a"}, ["a"]) == ([], [])


def test_a_directory_is_asked_to_strike_in_its_own_spelling() -> None:
    """SGLang compares addresses as texts."""
    assert directory_difference({"http://a:1"}, ["http://a:1/", "http://b:1/"]) == ([], ["http://b:1/"])


def test_an_encoder_that_does_not_compute_stays_but_is_not_registered_anew() -> None:
    assert directory_difference({"a", "b"}, ["a"], {"a", "b"}) == ([], [])
