"""Requests through the router, answered by encode, prefill and decode pods: what a client sees, also when pods die."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

import openai
import pytest

from e2e.kube import Kube, Object, ready_pods, until
from e2e.picture import RED_CIRCLE, red_circle
from e2e.samples import ready
from e2e.tests import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.stack import Stack

GENEROUS = 60  # seconds within which any answer, good or bad, must have come


def with_picture(question: str, url: str) -> list[Any]:
    """A chat of one user message with one image part."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    return [{"role": "user", "content": parts}]


@pytest.fixture
def client(router: str) -> Iterator[openai.OpenAI]:
    """The official client, unchanged, without retries of its own."""
    with openai.OpenAI(base_url=f"{router}/v1", api_key="unused", max_retries=0, timeout=GENEROUS) as made:
        yield made


def roles(kube: Kube, deployment: Object) -> dict[str, list[Object]]:
    """The Ready engine pods of a deployment by role."""
    meta = deployment["metadata"]
    pods = ready_pods(kube.pods(meta["namespace"], f"app.kubernetes.io/instance={meta['name']},serving.epd.dev/role"))
    actual: dict[str, list[Object]] = {}
    for pod in pods:
        actual.setdefault(pod["metadata"]["labels"]["serving.epd.dev/role"], []).append(pod)
    return actual


def busy(kube: Kube, pod: Object) -> int:
    """Requests that a pod still holds in any state, by its own count."""
    meta = pod["metadata"]
    document = kube.pod_json(meta["namespace"], meta["name"], 30000, "/v1/loads?include=core,disagg,queues")
    total = 0
    for load in document["loads"]:
        total += load["num_running_reqs"] + load["num_waiting_reqs"]
        total += sum(v for k, v in (load.get("disaggregation") or {}).items() if k.endswith("_reqs"))
    return int(total)


def all_idle(kube: Kube, deployment: Object) -> bool:
    """Whether no surviving engine pod holds a request."""
    return all(busy(kube, pod) == 0 for pods in roles(kube, deployment).values() for pod in pods)


def kill(kube: Kube, pod: Object) -> None:
    """End a pod at once, in mid-work."""
    meta = pod["metadata"]
    if not processes.kill(meta["name"]):
        pytest.skip("this cluster's pods are not processes of this machine: none can be killed from here")
    kube.delete("v1", "Pod", meta["namespace"], meta["name"], grace_period_seconds=0)


def recovered(kube: Kube, deployment: Object, gone: Object) -> None:
    """Wait until the killed pod's successor serves and nothing is stuck in the others."""
    meta = deployment["metadata"]
    role = gone["metadata"]["labels"]["serving.epd.dev/role"]

    def replaced() -> bool:
        names = {pod["metadata"]["name"] for pod in roles(kube, deployment).get(role, [])}
        return bool(names - {gone["metadata"]["name"]})

    until(f"another {role} pod", replaced, seconds=90)
    ready(kube, meta["namespace"], meta["name"])
    until("every pod idle", lambda: all_idle(kube, deployment), seconds=45)


def test_text_chat_is_the_same_streamed_and_whole(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Name three rivers."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**ask)
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 24
    chunks = list(client.chat.completions.create(**ask, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason in {"stop", "length"}


def test_image_chat_goes_through_an_encoder(client: openai.OpenAI, operator: Kube, serving: Object) -> None:
    rid = f"e2e-{uuid.uuid4().hex}"
    answer = client.chat.completions.create(
        model="demo",
        messages=with_picture("What is in this picture?", red_circle()),
        max_tokens=24,
        temperature=0,
        extra_headers={"X-Request-ID": rid},
    )
    assert answer.choices[0].message.content == RED_CIRCLE
    assert answer.choices[0].finish_reason == "stop"
    records = {
        role: operator.pod_json(pod["metadata"]["namespace"], pod["metadata"]["name"], 30000, f"/v1/requests/{rid}")
        for role, pods in roles(operator, serving).items()
        if role in {"encode", "prefill", "decode"}
        for pod in pods
    }
    assert set(records) == {"encode", "prefill", "decode"}


@pytest.fixture
def picture_server(operator: Kube, serving: Object, stack: Stack) -> str:
    """Base URL of a pod that serves `red.png`, on a port that our network policies let engines reach."""
    namespace = serving["metadata"]["namespace"]
    meta = {"name": "pictures", "namespace": namespace}
    png = red_circle().partition(",")[2]
    operator.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": {"red.png": png}})
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "http",
        "image": stack.images["worker"],
        "command": ["python3", "-m", "http.server", "80", "--directory", "/pictures"],
        "securityContext": security,
        "volumeMounts": [{"name": "pictures", "mountPath": "/pictures"}],
        "readinessProbe": {"httpGet": {"path": "/red.png", "port": 80}, "periodSeconds": 1},
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]},
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": "pictures", "configMap": {"name": "pictures"}}],
    }
    operator.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def address() -> str | None:
        ready_now = [p for p in ready_pods(operator.pods(namespace)) if p["metadata"]["name"] == "pictures"]
        return str(ready_now[0]["status"]["podIP"]) if ready_now else None

    return f"http://{until('the picture server', address, seconds=60)}"


def test_a_picture_by_url(client: openai.OpenAI, picture_server: str) -> None:
    ask: dict[str, Any] = {"model": "demo", "max_tokens": 8, "temperature": 0}
    by_url = client.chat.completions.create(messages=with_picture("?", f"{picture_server}/red.png"), **ask)
    inline = client.chat.completions.create(messages=with_picture("?", red_circle()), **ask)
    assert by_url.choices[0].message.content == inline.choices[0].message.content


def test_a_picture_that_is_not_there(client: openai.OpenAI, operator: Kube, serving: Object) -> None:
    prefill = roles(operator, serving)["prefill"][0]
    missing = f"http://{prefill['status']['podIP']}:30000/no-such-picture.png"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="demo",
            messages=with_picture("?", missing),
            max_tokens=4,
        )
    assert "image" in str(refused.value).lower()


def test_several_choices_and_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Count."}],
        max_tokens=6,
        n=2,
        temperature=0.8,
        seed=7,
        logprobs=True,
        top_logprobs=3,
    )
    assert len(answer.choices) == 2
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content
        for token in choice.logprobs.content:
            assert token.logprob <= 0
            assert len(token.top_logprobs) == 3


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=8, temperature=0)
    again = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=8, temperature=0)
    assert answer.choices[0].text == again.choices[0].text


def test_what_is_wrong_with_a_request_is_a_4xx(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x" * 200_000}])
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="demo",
            messages=with_picture("?", "data:image/png;base64,AAAA"),
        )
    with pytest.raises((openai.NotFoundError, openai.APIStatusError)) as unknown:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.status_code in {404, 503}
    answer = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}], max_tokens=2)
    assert answer.choices


def test_decode_killed_in_mid_stream(client: openai.OpenAI, operator: Kube, serving: Object) -> None:
    decode = roles(operator, serving)["decode"][0]
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Talk without end."}],
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    seen = iter(stream)
    next(seen)
    next(seen)
    kill(operator, decode)
    with pytest.raises(openai.APIError) as broken:
        for _ in seen:
            pass
    assert "stream_error" in f"{broken.value.type} {broken.value.body} {broken.value}"
    recovered(operator, serving, decode)
    answer = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}], max_tokens=2)
    assert answer.choices


def test_prefill_killed_before_transfer(client: openai.OpenAI, operator: Kube, serving: Object) -> None:
    prefill = roles(operator, serving)["prefill"][0]
    outcome: list[BaseException | object] = []

    def ask() -> None:
        try:
            outcome.append(
                client.chat.completions.create(
                    model="demo", messages=[{"role": "user", "content": "long " * 1500}], max_tokens=4
                )
            )
        except openai.APIError as error:
            outcome.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until("the prefill pod busy", lambda: busy(operator, prefill) > 0, seconds=10, every=0.02)
    kill(operator, prefill)
    asking.join(GENEROUS)
    assert outcome, "the client still waits"
    assert isinstance(outcome[0], openai.APIStatusError)
    assert outcome[0].status_code in {500, 502, 503}
    recovered(operator, serving, prefill)
    answer = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}], max_tokens=2)
    assert answer.choices


def test_encoder_killed(client: openai.OpenAI, operator: Kube, serving: Object) -> None:
    encode = roles(operator, serving)["encode"][0]
    kill(operator, encode)
    try:
        client.chat.completions.create(
            model="demo",
            messages=with_picture("?", red_circle()),
            max_tokens=2,
        )
    except openai.APIStatusError as error:
        assert error.status_code in {500, 502, 503}  # noqa: PT017  # an answer is as good: the successor may be quick
    text = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}], max_tokens=2)
    assert text.choices
    recovered(operator, serving, encode)
    answer = client.chat.completions.create(
        model="demo",
        messages=with_picture("?", red_circle()),
        max_tokens=2,
    )
    assert answer.choices
