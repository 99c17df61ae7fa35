from __future__ import annotations

import aiohttp

from epd_operator.runtime.metric import Metrics
from epd_operator.runtime.probe import Server


async def test_checks_and_metrics_are_served() -> None:
    metrics = Metrics()
    metrics.watch_ages(lambda: {"pods": 3.0})
    metrics.conditions(lambda: [{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, {}])
    metrics.reconciles.labels("deepseekv41deployment", "success").inc()
    faults: list[str] = []
    server = Server(0)
    server.check("/healthz", lambda: faults)
    server.metrics(metrics.registry)
    port = await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/healthz") as response:
            assert (response.status, await response.text()) == (200, "ok")
        faults += ["one", "two"]
        async with session.get("/healthz") as response:
            assert (response.status, await response.text()) == (503, "one\ntwo")
        async with session.get("/metrics") as response:
            text = await response.text()
            assert response.headers["Content-Type"].startswith("text/plain")
    await server.stop()
    for line in (
        'controller_runtime_reconcile_total{controller="deepseekv41deployment",result="success"} 1.0',
        'watch_last_event_age_seconds{kind="pods"} 3.0',
        'epd_deployments{condition="Ready",status="True"} 1.0',
        'workqueue_depth{name="deepseekv41deployment"} 0.0',
    ):
        assert line in text.splitlines()
    for name in ("leader_election_master_status", "rest_client_requests_total", "event_loop_lag_seconds"):
        assert f"# TYPE {name}" in text
