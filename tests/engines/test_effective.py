from __future__ import annotations

import copy
from typing import Any

import pytest

from epd_operator import api
from epd_operator.api import names, status
from epd_operator.api.pod import PodPlacement
from epd_operator.engines import lookup
from epd_operator.engines.effective import Effective, effective

SGLANG: dict[str, Any] = {"type": "SGLang", "version": "0.5.23", "platform": "cuda-sm90", "image": "sglang:1"}


def resolve(**spec: Any) -> Effective:
    whole: dict[str, Any] = {
        "engine": {"type": "Reference", "version": "0.1"},
        "roles": {"prefill": {}, "decode": {}},
        **spec,
    }
    document = {"metadata": {"name": "demo", "namespace": "llm"}, "spec": whole}
    before = copy.deepcopy(document)
    profile = lookup(whole["engine"]["type"], whole["engine"]["version"])
    actual = effective(api.parse(document), profile)
    assert document == before
    return actual


def test_everything_left_out_has_a_value() -> None:
    actual = resolve()
    assert list(actual.roles) == ["prefill", "decode"]
    assert actual.served_name == "demo"
    assert (actual.image, actual.image_pull_policy, actual.platform) == (None, "IfNotPresent", "cpu")
    assert (actual.transfer_backend, actual.bootstrap_port) == ("tcp", 8998)
    assert (actual.facts.page_size, actual.facts.context_length) == (64, 8192)
    role = actual.roles["decode"]
    assert (role.replicas, role.cpu, role.memory) == (1, "150m", "1Gi")
    assert (role.startup_minutes, role.grace_seconds) == (2, 60)
    router = actual.router
    assert (router.replicas, router.prefill_policy, router.decode_policy) == (1, "cache_aware", "least_load")
    assert (router.request_timeout_seconds, router.max_concurrent_requests) == (1800, 0)
    assert (router.cpu, router.memory, router.service_type, router.service_port) == ("1", "512Mi", "ClusterIP", 8000)
    assert actual.network_policy is True


def test_what_the_user_wrote_wins() -> None:
    actual = resolve(
        model={"servedName": "toy", "path": "/model", "revision": "7"},
        engine={"type": "Reference", "version": "0.1", "image": "mine:1", "imagePullSecrets": [{"name": "pull"}]},
        roles={
            "encode": {"replicas": 0, "resources": {"cpu": 2}},
            "prefill": {"args": {"page-size": 16, "context-length": 512}, "startupMinutes": 9},
            "decode": {"args": {"page-size": 16}, "pod": {"terminationGracePeriodSeconds": 11}},
        },
        transfer={"bootstrapPort": 9999},
        router={"replicas": 0, "service": {"port": 80}},
        networkPolicy={"enabled": False},
    )
    assert list(actual.roles) == ["encode", "prefill", "decode"]
    assert (actual.served_name, actual.model_path, actual.model_revision) == ("toy", "/model", "7")
    assert (actual.image, actual.image_pull_secrets) == ("mine:1", ("pull",))
    assert (actual.roles["encode"].replicas, actual.roles["encode"].cpu) == (0, "2")
    assert (actual.facts.page_size, actual.facts.context_length, actual.bootstrap_port) == (16, 512, 9999)
    assert (actual.roles["prefill"].startup_minutes, actual.roles["decode"].grace_seconds) == (9, 11)
    assert (actual.router.replicas, actual.router.service_port, actual.network_policy) == (0, 80, False)


def test_without_a_mode_there_is_no_pool() -> None:
    off = {"mode": "Disabled", "memory": "8Gi", "stores": 3, "ttl": "300s", "pod": {"nodeSelector": {"a": "b"}}}
    assert [resolve(swaPool=pool).swa_pool for pool in ({}, {"mode": "Disabled"}, off)] == [None] * 3
    assert resolve().swa_pool is None


@pytest.mark.parametrize(
    ("mode", "memory", "size", "stores"),
    [("InProcess", "256Mi", 2**28, 0), ("Valkey", "8Gi", 2**33, 1), ("Mooncake", "8Gi", 2**33, 1)],
)
def test_a_pool_left_alone_has_what_its_mode_needs(mode: str, memory: str, size: int, stores: int) -> None:
    pool = resolve(swaPool={"mode": mode}).swa_pool
    assert pool is not None
    assert (pool.mode, pool.memory, pool.memory_bytes, pool.stores) == (mode, memory, size, stores)
    assert (pool.ttl, pool.deadline) == (300.0, 0.02)
    assert pool.pod == PodPlacement()


def test_a_pool_is_as_the_user_writes_it() -> None:
    pod = {"nodeSelector": {"disk": "none"}, "priorityClassName": "batch"}
    written = {"mode": "Mooncake", "memory": "1.5G", "stores": 3, "ttl": "1h0.5s", "deadline": "7ms", "pod": pod}
    pool = resolve(swaPool=written).swa_pool
    assert pool is not None
    assert (pool.memory, pool.memory_bytes, pool.stores) == ("1.5G", 1_500_000_000, 3)
    assert (pool.ttl, pool.deadline) == (3600.5, 0.007)
    assert pool.pod.node_selector == {"disk": "none"}
    assert (pool.pod.priority_class_name, pool.pod.tolerations) == ("batch", [])


def test_published_values_fit_the_status_schema() -> None:
    shown = status.Status.model_validate({"effective": resolve().published()})
    assert shown.effective is not None
    assert (shown.effective.served_name, shown.effective.page_size) == ("demo", 64)


def gpus(**decode: Any) -> Effective:
    return resolve(engine=SGLANG, model={"path": "/model"}, roles={"prefill": {}, "decode": decode})


def test_a_gpu_role_left_alone_has_what_its_ranks_need() -> None:
    actual = gpus(args={"tp-size": 4})
    role = actual.roles["decode"]
    assert (role.nodes, role.gpu, role.rdma, role.host_network) == (1, 4, 0, False)
    assert (role.cpu, role.memory, role.shm) == ("8", "128Gi", "32Gi")
    assert (role.startup_minutes, role.grace_seconds) == (90, 900)
    assert actual.roles["prefill"].gpu == 1
    assert (actual.platform, actual.transfer_backend, actual.host_network) == ("cuda-sm90", "mooncake", False)
    assert (actual.facts.page_size, actual.facts.context_length) == (256, 1_048_576)
    assert actual.published()["shm"] == {"prefill": "32Gi", "decode": "32Gi"}
    assert status.Status.model_validate({"effective": actual.published()}).effective


@pytest.mark.parametrize(
    ("memory", "shm"), [("512Gi", "32Gi"), ("64Gi", "32Gi"), ("16Gi", "8192Mi"), ("8589934592", "4096Mi")]
)
def test_shared_memory_takes_at_most_half_of_the_limit_that_it_counts_against(memory: str, shm: str) -> None:
    assert gpus(resources={"memory": memory}).roles["decode"].shm == shm


def test_shared_memory_is_as_large_as_the_user_says_and_absent_without_a_gpu() -> None:
    assert gpus(resources={"shm": "1Gi"}).roles["decode"].shm == "1Gi"
    assert resolve().roles["decode"].shm is None
    assert "shm" not in resolve().published()
    assert resolve(roles={"prefill": {}, "decode": {"resources": {"shm": "1Gi"}}}).roles["decode"].shm == "1Gi"


def test_summaries_are_ready_of_desired() -> None:
    role = status.role_status(desired=2, ready=1, updated=1, revision="ab12cd34")
    router = status.router_status(desired=1, ready=0, url="http://demo.llm.svc:8000")
    shown = status.Status.model_validate({"roles": {"prefill": role}, "router": router})
    assert shown.roles is not None
    assert shown.roles.prefill is not None
    assert shown.router is not None
    assert (shown.roles.prefill.summary, shown.router.summary) == ("1/2", "0/1")


@pytest.mark.parametrize("role", names.ROLES)
def test_child_names_fit_for_the_longest_name(role: str) -> None:
    longest = "n" * names.MAX_NAME
    # A label holds the name of the StatefulSet of a group, a dash and a hash of up to ten characters.
    assert len(f"{names.workload('n' * names.MAX_GROUP_NAME, role, '01234567')}-999-0123456789") <= 63
    assert len(names.workload(longest, role, "01234567")) <= 57
    assert len(names.router(longest)) <= 63
    assert len(names.engine_account(longest)) <= 63
    assert max(len(names.swa_pool(longest)), len(names.swa_pool_store(longest))) <= 63


def test_labels_are_an_allow_list() -> None:
    assert names.labels("demo", "prefill", revision="ab12cd34", compat_key="0" * 16) == {
        "app.kubernetes.io/name": "deepseek-v41",
        "app.kubernetes.io/instance": "demo",
        "app.kubernetes.io/component": "prefill",
        "app.kubernetes.io/part-of": "epd",
        "app.kubernetes.io/managed-by": "epd-operator",
        "serving.epd.dev/role": "prefill",
        "serving.epd.dev/revision": "ab12cd34",
        "serving.epd.dev/compat-key": "0" * 16,
    }
    assert "serving.epd.dev/role" not in names.labels("demo", "router")
    assert names.selector("demo", "router").items() <= names.labels("demo", "router", revision="x").items()
