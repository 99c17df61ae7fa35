from __future__ import annotations

from epd_workers.registrar.engine_metrics import Plugin
from epd_workers.registrar.metrics import Metrics
from epd_workers.registrar.server_info import parse
from epd_workers.registrar.state import View, document, tally
from tests.support.registrar_values import POOL, RUNNING, SHOWN, pod, worker_for

PREFILL = pod("demo-prefill-1")
DECODE = pod("demo-decode-1", role="decode", ip="10.0.0.2")
ENCODE = pod("demo-encode-1", role="encode", ip="10.0.0.3")


def doc(view: View) -> dict[str, object]:
    return document(view, pod="demo-router-x", version="smg 1.13.0", engine_port=30000)


def test_the_document_of_a_deployment_that_serves() -> None:
    view = View(
        pods=(ENCODE, PREFILL, DECODE),
        workers=(worker_for(PREFILL), worker_for(DECODE, load=2)),
        directories={PREFILL.uid: ["http://10.0.0.3:30000"]},
        router_ready=True,
    )
    assert doc(view) == {
        "schema": 1,
        "pod": "demo-router-x",
        "compatKeys": {"k1": {"prefill": 1, "decode": 1, "routable": True}},
        "router": {"ready": True, "version": "smg 1.13.0"},
        "workers": [
            {
                "pod": "demo-decode-1",
                "role": "decode",
                "url": "http://10.0.0.2:30000",
                "compatKey": "k1",
                "revision": "r1",
                "imageID": "sha256:a",
                "registered": True,
                "routable": True,
                "state": "ready",
                "inFlight": 2,
                "reason": "",
                "replay": None,
                "swaPool": None,
                "plugin": None,
            },
            {
                "pod": "demo-prefill-1",
                "role": "prefill",
                "url": "http://10.0.0.1:30000",
                "compatKey": "k1",
                "revision": "r1",
                "imageID": "sha256:a",
                "registered": True,
                "routable": True,
                "state": "ready",
                "inFlight": 0,
                "reason": "",
                "replay": None,
                "swaPool": None,
                "plugin": None,
            },
        ],
        "encoders": [
            {
                "pod": "demo-encode-1",
                "url": "http://10.0.0.3:30000",
                "compatKey": "k1",
                "registeredWith": ["demo-prefill-1"],
                "missing": [],
                "reason": "",
                "plugin": None,
            }
        ],
    }


def test_what_a_pod_said_of_itself_is_shown() -> None:
    view = View(pods=(PREFILL, DECODE, pod("other", ip="10.0.0.8"), pod("third", ip="10.0.0.9")))
    reports = {
        PREFILL.uid: parse({"replay": RUNNING, "swa_pool": POOL}),
        "uid-other": parse({"replay": RUNNING, "swa_pool": POOL | {"fault": "no word"}}),
        "uid-third": parse({"swa_pool": POOL | {"fault": "Unreachable"}}),
    }
    shown = document(view, pod="", version="", engine_port=30000, reports=reports)
    assert {worker["pod"]: (worker["replay"], worker["swaPool"]) for worker in shown["workers"]} == {
        "demo-decode-1": (None, None),
        "demo-prefill-1": (SHOWN, POOL),
        "other": (SHOWN, None),
        "third": (None, POOL | {"fault": "Unreachable"}),
    }


def test_a_pod_that_does_not_compute_is_named_and_not_counted_on() -> None:
    view = View(pods=(ENCODE, PREFILL, DECODE), workers=(worker_for(PREFILL), worker_for(DECODE)), router_ready=True)
    failing = {PREFILL.uid: "does not compute", ENCODE.uid: "does not encode"}
    plugins = {DECODE.uid: Plugin("0.5.23.1", "decode"), ENCODE.uid: Plugin("0.5.23.1", "encode")}
    shown = document(view, pod="", version="", engine_port=30000, failing=failing, plugins=plugins)
    assert [(w["state"], w["routable"], w["registered"], w["reason"], w["plugin"]) for w in shown["workers"]] == [
        ("ready", True, True, "", {"version": "0.5.23.1", "role": "decode"}),
        ("not_ready", False, True, "does not compute", None),
    ]
    assert shown["compatKeys"] == {"k1": {"prefill": 0, "decode": 1, "routable": False}}
    assert [(e["reason"], e["plugin"]) for e in shown["encoders"]] == [
        ("does not encode", {"version": "0.5.23.1", "role": "encode"})
    ]


def states(view: View) -> dict[str, tuple[str, bool, bool]]:
    workers = document(view, pod="", version="", engine_port=30000)["workers"]
    return {w["pod"]: (w["state"], w["registered"], w["routable"]) for w in workers}


def test_every_state_is_told_apart() -> None:
    names = ("ready", "new", "sick", "drained", "leaving", "unready")
    pods = {name: pod(name, ip=f"10.0.0.{i}") for i, name in enumerate(names, start=1)}
    pods["leaving"] = pod("leaving", ip="10.0.0.5", deleting=True)
    pods["unready"] = pod("unready", ip="10.0.0.6", ready=False)
    pods["other"] = pod("other", ip="10.0.0.7", image="sha256:b", created="2026-02-01T00:00:00Z")
    workers = (
        worker_for(pods["ready"]),
        worker_for(pods["sick"], status="not_ready"),
        worker_for(pods["drained"], status="draining"),
        worker_for(pods["leaving"], status="draining"),
    )
    assert states(View(pods=tuple(pods.values()), workers=workers, router_ready=True)) == {
        "ready": ("ready", True, True),
        "new": ("registering", False, False),
        "sick": ("not_ready", True, False),
        "drained": ("draining", True, False),
        "leaving": ("draining", True, False),
        "unready": ("not_ready", False, False),
        "other": ("refused", False, False),
    }


def test_a_key_with_one_side_only_is_not_routable() -> None:
    other = pod("d2", role="decode", ip="10.0.0.9", key="k2")
    view = View(pods=(PREFILL, other), workers=(worker_for(PREFILL), worker_for(other)), router_ready=True)
    assert doc(view)["compatKeys"] == {
        "k1": {"prefill": 1, "decode": 0, "routable": False},
        "k2": {"prefill": 0, "decode": 1, "routable": False},
    }


def test_an_encoder_names_the_prefills_that_lack_it() -> None:
    second = pod("demo-prefill-2", ip="10.0.0.4")
    stranger = pod("stranger", ip="10.0.0.5", key="k2")
    view = View(pods=(ENCODE, PREFILL, second, stranger), directories={PREFILL.uid: ["http://10.0.0.3:30000"]})
    encoders = document(view, pod="", version="", engine_port=30000)["encoders"]
    assert [(e["registeredWith"], e["missing"]) for e in encoders] == [(["demo-prefill-1"], ["demo-prefill-2"])]


def test_the_metrics_count_pods_by_role_and_state() -> None:
    view = View(pods=(ENCODE, PREFILL, DECODE), workers=(worker_for(PREFILL),), router_ready=True)
    metrics = Metrics()
    metrics.observe(tally(doc(view), view))
    text = metrics.text().decode()
    assert 'registrar_workers{role="prefill",state="ready"} 1.0' in text
    assert 'registrar_workers{role="decode",state="registering"} 1.0' in text
    assert 'registrar_workers{role="encode",state="ready"} 1.0' in text
    assert 'registrar_errors_total{target="router"} 0.0' in text
