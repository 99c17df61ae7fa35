"""The generated policies on a real API server: it says what `epd validate` and the controller say, at `kubectl apply`.

Most questions are server-side dry runs over kept-alive connections, so nothing is stored and hundreds take seconds.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import openai
import pytest
import yaml

from e2e import stack as stacks
from e2e.forward import Forward
from e2e.kube import API_VERSION, KIND, conditions, until
from e2e.samples import ready, sample
from epd_operator.admission import policy
from epd_operator.api.names import MANAGED_SELECTOR
from epd_operator.engines import table
from epd_operator.engines.validation import STRUCTURE, validate
from epd_operator.plan import Observed, Settings, plan
from epd_operator.rules.limit import MOST_ITEMS
from tools.corpus.field_cases import field_cases
from tools.corpus.generated import generated
from tools.corpus.rule_examples import rule_examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.kube import Kube, Object
    from epd_operator.rules.judgement import Judgement

SEED = 20261130
DRAWN = 320
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
ADMISSION = "admissionregistration.k8s.io/v1"
UNJUDGED = "e2e.epd.dev/unjudged"
SETTINGS = Settings(router_image="epd-router:1", worker_image="epd-worker:1", version="1")
SAMPLES = stacks.ROOT / "manifests" / "samples"
UNSEEN = {rule for ruleset in table.RULESETS.values() for rule in policy.inexpressible(ruleset)}
WHOLE_ROLE = {"vision-tier-unsupported"}
"""Rules that refuse a role whatever it holds: a policy says no more about such a role."""


@dataclass(frozen=True)
class Answer:
    """What the API server says to a dry run."""

    status: int
    message: str

    @property
    def admitted(self) -> bool:
        return self.status < 300

    @property
    def rules(self) -> set[str]:
        """Ids of the rules in the message, or none where something else than a policy refused."""
        return set(re.findall(r"\[([a-z0-9-]+)\] ", self.message)) if POLICY in self.message else set()


def ask(kube: Kube, namespace: str, document: Object) -> Answer:
    """Create an object in a dry run."""
    body = {**document, "metadata": {"name": document["metadata"]["name"]}}
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/deepseekv41deployments?dryRun=All&fieldValidation=Strict"
    response = kube.api.rest_client.pool_manager.request(
        "POST",
        kube.api.configuration.host + path,
        body=json.dumps(body),
        headers={"Content-Type": "application/json"},
    )
    return Answer(response.status, json.loads(response.data).get("message", ""))


def controller_accepts(document: Object) -> bool:
    """The condition Valid that the controller would write."""
    stored = {**document, "metadata": {**document["metadata"], "namespace": "x", "uid": "u", "generation": 1}}
    decided = plan(stored, Observed([], [], [], [], [], datetime.now(UTC)), SETTINGS)
    return bool(conditions({"status": decided.status})["Valid"]["status"] == "True")


def corpus() -> dict[str, Object]:
    samples = {
        path.stem: document
        for path in SAMPLES.glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if document and document["kind"] == KIND
    }
    # An example without a document is a bare command line, which no API server ever sees.
    examples = {example.name: example.document for example in rule_examples() if example.document}
    cases = {case.name: case.document for case in field_cases()}
    return {**samples, **cases, **examples, **dict(generated(SEED, DRAWN))}


def refused_by_policy() -> Object:
    """A spec that three rules and the flag catalogue refuse."""
    document: Object = yaml.safe_load((SAMPLES / "sglang-h200.yaml").read_text(encoding="utf-8"))
    document["spec"]["roles"]["prefill"]["args"] |= {"tp-sise": 4, "page-size": "big", "pp-size": 2}
    document["spec"]["roles"]["decode"]["args"] |= {"host": "::"}
    return document


def verdict(kube: Kube, namespace: str, name: str) -> Object | None:
    """The condition Valid, once the operator has written it."""
    return conditions(kube.deployment(namespace, name)).get("Valid")


@pytest.fixture(scope="module")
def namespace(operator: Kube, new_namespace: Callable[[str], str]) -> str:
    """An empty namespace on a cluster where the policies are in force."""
    made = new_namespace("e2e-admission")
    in_force(operator, made)
    return made


def in_force(kube: Kube, namespace: str) -> None:
    """Wait until the API server asks the policies, which it learns of with a delay."""
    until("the policies to be in force", lambda: ask(kube, namespace, refused_by_policy()).rules, seconds=60)


def test_the_policies_are_taken_and_type_checked_without_a_warning(operator: Kube, namespace: str) -> None:
    def checked() -> list[Object]:
        live = operator.find(ADMISSION, POLICY, None, "app.kubernetes.io/part-of=epd")
        done = [one for one in live if one["status"].get("observedGeneration") == one["metadata"]["generation"]]
        return live if len(live) == len(done) == 1 + len(table.RULESETS) else []

    for item in until("the policies to be type checked", checked, seconds=60):
        warnings = (item["status"].get("typeChecking") or {}).get("expressionWarnings")
        assert not warnings, f"{item['metadata']['name']}: {warnings}"


def test_everything_wrong_is_told_at_once_in_the_words_of_the_command_line(operator: Kube, namespace: str) -> None:
    document = refused_by_policy()
    answer = ask(operator, namespace, document)
    judged = validate(document)
    assert answer.rules == {finding.rule for finding in judged.errors}
    reported = answer.message.split("would not run this: ", 1)[1].split("; [")
    assert len(reported) == len(judged.errors)
    (pipeline,) = (one for one in judged.errors if one.rule == "model-pipeline-parallel")
    line = str(pipeline).rsplit(" (", 1)[0]
    assert line.removeprefix("[") in reported


def test_command_line_controller_and_api_server_agree(operator: Kube, namespace: str) -> None:
    documents = corpus()
    assert len(documents) >= 500
    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(lambda one: ask(operator, namespace, one), documents.values())
        answers = dict(zip(documents, asked, strict=True))
    judged = {name: validate(document) for name, document in documents.items()}
    differing = [
        f"{name}: {difference}\n  {json.dumps(documents[name]['spec'])}\n  {answers[name].message}"
        for name in documents
        if (difference := _difference(judged[name], answers[name], controller_accepts(documents[name])))
    ]
    differing.sort(key=len)
    assert not differing, f"{len(differing)} of {len(documents)}, the shortest:\n" + "\n".join(differing[:5])
    accepted = sum(one.accepted for one in judged.values())
    assert 0.25 < accepted / len(documents) < 0.75
    seen = {finding.rule for one in judged.values() for finding in one.errors}
    assert len(seen) >= 100


def _difference(judged: Judgement, answer: Answer, controller: bool) -> str:
    """How the three verdicts differ; empty when they agree, or where a rule that no policy can express decides."""
    if judged.accepted != controller:
        return f"validate says {judged.accepted}, the controller {controller}"
    mine = {finding.rule for finding in judged.errors}
    if STRUCTURE in mine:
        return "the schema admits what validate calls malformed" if answer.admitted else ""
    # A value of a wrong type counts as absent for the controller, and is a reason to refuse by itself.
    more = set() if "flag-value" in mine else answer.rules - mine
    less = set() if answer.rules & WHOLE_ROLE else mine - answer.rules - UNSEEN
    if more or less:
        return f"only the policy: {sorted(more)}, only validate: {sorted(less)}"
    if answer.admitted == bool(answer.rules):
        return f"answered {answer.status}, validate finds {sorted(mine)}"
    return ""


def test_judging_costs_little(operator: Kube, namespace: str) -> None:
    document = yaml.safe_load((SAMPLES / "sglang-h200.yaml").read_text(encoding="utf-8"))

    def once() -> float:
        start = time.perf_counter()
        assert ask(operator, namespace, document).admitted
        return time.perf_counter() - start

    median = statistics.median(once() for _ in range(20))
    print(f"a dry-run create of an SGLang spec takes {median * 1000:.0f} ms")
    assert median < 1


def _with(role: str, **args: Any) -> Object:
    document: Object = yaml.safe_load((SAMPLES / "sglang-h200.yaml").read_text(encoding="utf-8"))
    document["spec"]["roles"][role]["args"] |= {name.replace("_", "-"): value for name, value in args.items()}
    return document


@pytest.mark.parametrize(
    "document",
    [
        _with("prefill", page_size="two\nlines", tp_sise=1),
        _with("prefill", **{"a\nname\r": 1}, page_size="x"),
        _with("prefill", **{"é" * 3000: 1}, page_size="☃" * 3000),
        _with("prefill", **{f"{number}{'🙂' * 60}": "🙂" * 4000 for number in range(60)}),
        _with("prefill", tp_sise="x" * 4096, page_size="y" * 4096, pp_size=2),
        _with("decode", cuda_graph_bs_decode=[1] * 513),
    ],
    ids=["value in lines", "name in lines", "two bytes", "four bytes", "long beside others", "long list"],
)
def test_no_value_keeps_the_message_from_the_user(operator: Kube, namespace: str, document: Object) -> None:
    """The API server says the bare expression where a message has a line break or more than 5120 bytes."""
    answer = ask(operator, namespace, document)
    assert answer.status == 403
    assert answer.rules == {finding.rule for finding in validate(document).errors}
    assert "failed expression" not in answer.message
    assert len(answer.message.encode()) < 5120 + 512


@pytest.mark.parametrize("value", [{"a": 1}, [1, {"a": 1}], [[1]], [None]])
def test_a_flag_unknown_to_the_rules_holds_no_object(operator: Kube, namespace: str, value: object) -> None:
    document = _with("prefill", new_flag=value)
    document["spec"]["engine"] |= {"version": "0.5.99", "versionPolicy": "Nearest"}
    assert ask(operator, namespace, document).rules == {STRUCTURE}
    document["spec"]["roles"]["prefill"]["args"]["new-flag"] = [1, True, "a", 0.5]
    assert STRUCTURE not in ask(operator, namespace, document).rules


def test_what_was_applied_is_what_is_stored(operator: Kube, namespace: str) -> None:
    """A tool that compares both, as GitOps tools do, finds nothing that the API server filled in."""
    for made in policy.policies():
        document = {**made, "metadata": {"name": f"e2e-stored-{made['metadata']['name']}"}}
        bound = policy.binding(document)
        bound["spec"]["matchResources"]["namespaceSelector"] = {"matchLabels": {UNJUDGED: "never"}}
        for applied in (document, bound):
            stored = operator.apply(applied)
            operator.delete(ADMISSION, applied["kind"], None, applied["metadata"]["name"])
            assert stored["spec"] == applied["spec"]


def test_judging_the_longest_lists_takes_little(operator: Kube, namespace: str) -> None:
    catalogue = table.RULESETS["SGLang"].catalogue("0.5.23", "prefill")
    lists = {
        spec.name: [{"int": 7, "float": 0.5}.get(spec.type, "word")] * MOST_ITEMS
        for spec in catalogue.flags.values()
        if spec.owner is None and spec.nargs in {"*", "+"}
    }
    assert len(lists) >= 20
    document = _with("prefill", **lists)
    document["spec"]["roles"]["decode"]["args"] |= lists
    start = time.perf_counter()
    assert "resulted in error" not in ask(operator, namespace, document).message
    seconds = time.perf_counter() - start
    print(f"{len(lists)} lists of {MOST_ITEMS} in two roles take {seconds * 1000:.0f} ms")
    assert seconds < 5


@pytest.fixture(scope="module")
def unjudged(operator: Kube, stack: stacks.Stack, new_namespace: Callable[[str], str]) -> Iterator[str]:
    """A namespace that the chart's namespaceSelector leaves out, so that specs which break rules can be stored."""
    left_out = {"matchExpressions": [{"key": UNJUDGED, "operator": "DoesNotExist"}]}
    stacks.install(stack, *_flat("admission.namespaceSelector", left_out))
    made = new_namespace("e2e-unjudged")
    operator.merge("v1", "Namespace", None, made, {"metadata": {"labels": {UNJUDGED: ""}}})
    until(
        "the namespace to be left out",
        lambda: ask(operator, made, refused_by_policy()).admitted,
        seconds=60,
    )
    yield made
    stacks.install(stack)


def _flat(path: str, value: Any) -> Iterator[str]:
    """A value as Helm's --set takes it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat(f"{path}[{index}]", inner)
    else:
        yield f"{path}={value}"


def test_the_operator_writes_the_verdict_of_the_command_line(operator: Kube, unjudged: str) -> None:
    judged = {case.name: (case.document, validate(case.document)) for case in field_cases()}
    storable = {name: pair for name, pair in judged.items() if STRUCTURE not in {one.rule for one in pair[1].findings}}
    refused = [name for name, (_, actual) in storable.items() if not actual.accepted][:16]
    accepted = [name for name, (_, actual) in storable.items() if actual.accepted][:8]
    for number, name in enumerate([*refused, *accepted]):
        document = json.loads(json.dumps(storable[name][0]))
        document["metadata"] = {"name": f"case-{number}", "namespace": unjudged}
        for part in (*document["spec"]["roles"].values(), document["spec"].setdefault("router", {})):
            part["replicas"] = 0
        operator.apply(document)
    for number, name in enumerate([*refused, *accepted]):
        actual = until(f"the verdict on {name}", partial(verdict, operator, unjudged, f"case-{number}"), seconds=60)
        assert (actual["status"] == "True") == storable[name][1].accepted, f"{name}: {actual}"


def test_an_object_that_became_invalid_stays_editable(operator: Kube, unjudged: str) -> None:
    document = {**refused_by_policy(), "metadata": {"name": "stale", "namespace": unjudged}}
    document["spec"]["router"] = {"replicas": 0}
    for role in document["spec"]["roles"].values():
        role["replicas"] = 0
    operator.apply(document)
    operator.merge("v1", "Namespace", None, unjudged, {"metadata": {"labels": {UNJUDGED: None}}})
    try:
        in_force(operator, unjudged)
        edit = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e2e.epd.dev/hold"]}
        operator.merge(API_VERSION, KIND, unjudged, "stale", {"metadata": edit})
        until(
            "the operator to write its status",
            lambda: (verdict(operator, unjudged, "stale") or {}).get("status") == "False",
            seconds=60,
        )
        with pytest.raises(Exception, match="flag-unknown"):
            operator.merge(API_VERSION, KIND, unjudged, "stale", {"spec": {"transfer": {"bootstrapPort": 9001}}})
        operator.delete(API_VERSION, KIND, unjudged, "stale")
        operator.merge(API_VERSION, KIND, unjudged, "stale", {"metadata": {"finalizers": None}})
        until("it to be gone", lambda: operator.deployment(unjudged, "stale") is None, seconds=60)
    finally:
        operator.merge("v1", "Namespace", None, unjudged, {"metadata": {"labels": {UNJUDGED: ""}}})


def test_a_bad_generation_changes_no_child_and_the_good_one_keeps_serving(
    operator: Kube, stack: stacks.Stack, unjudged: str
) -> None:
    good = sample("steady", unjudged)
    del good["spec"]["roles"]["encode"]
    operator.apply(good)
    ready(operator, unjudged, "steady")

    def children() -> dict[str, tuple[str, int]]:
        """What the operator makes, and the pods: no new one, none replaced, none with another spec."""
        owned = f"{MANAGED_SELECTOR},app.kubernetes.io/instance=steady"
        kinds = (("apps/v1", "Deployment"), ("apps/v1", "ControllerRevision"), ("v1", "Service"), ("v1", "Pod"))
        actual = [one for version, kind in kinds for one in operator.find(version, kind, unjudged, owned)]
        return {
            f"{one['kind']}/{one['metadata']['name']}": (
                one["metadata"]["uid"],
                one["metadata"].get("generation", 0),
            )
            for one in actual
        }

    before = children()
    assert {name.partition("/")[0] for name in before} == {"Deployment", "ControllerRevision", "Service", "Pod"}
    bad = json.loads(json.dumps(good))
    bad["spec"]["roles"]["decode"] |= {"replicas": 3, "args": {"page-size": 32}}
    assert {finding.rule for finding in validate(bad).errors} == {"pair-page-size"}
    operator.apply(bad)

    def refused() -> Object | None:
        actual = verdict(operator, unjudged, "steady")
        live = operator.deployment(unjudged, "steady")
        assert live is not None
        current = actual is not None and actual["observedGeneration"] == live["metadata"]["generation"]
        return actual if current and actual is not None and actual["status"] == "False" else None

    reported = until("the bad generation to be refused", refused, seconds=60)
    assert reported["reason"] == "PairPageSize"
    assert "spec.roles.decode.args.page-size = 32" in reported["message"]
    until("nothing to follow", lambda: children() == before, seconds=5)
    time.sleep(5)  # long enough for a reconcile that should not have been
    assert children() == before
    live = operator.deployment(unjudged, "steady")
    assert live is not None
    assert conditions(live)["Available"]["status"] == "True"
    served = live["status"]["effective"]["servedName"]
    with Forward(stack.kubeconfig, unjudged, "svc/steady", 8000) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60)
        answer = client.completions.create(model=served, prompt="Hi", max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    operator.apply(good)
    ready(operator, unjudged, "steady")
    assert children() == before


def test_a_chart_without_admission_leaves_no_policy(operator: Kube, stack: stacks.Stack, namespace: str) -> None:
    stacks.install(stack, "admission.enabled=false")
    try:
        for kind in (POLICY, BINDING):
            assert operator.find(ADMISSION, kind, None, "app.kubernetes.io/part-of=epd") == []
        until("nobody to refuse", lambda: ask(operator, namespace, refused_by_policy()).admitted, seconds=60)
    finally:
        stacks.install(stack)
        in_force(operator, namespace)
