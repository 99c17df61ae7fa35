"""`make demo`: from nothing to an image chat that encode, prefill and decode pods answered, each step in sight.

Run it again as often as you like; what is there already is used.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai
import yaml
from kubernetes import config
from rich.console import Console
from rich.live import Live
from rich.table import Table

from e2e import stack as stacks
from e2e.forward import Forward
from e2e.kube import Kube, Object, ready_pods, until
from e2e.picture import RED_CIRCLE, red_circle
from epd_operator.cli.reader import Deployment, Reader
from epd_operator.cli.status import view
from tools import progress
from tools.program import Unfit
from tools.progress import say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SAMPLE = stacks.ROOT / "manifests" / "samples" / "reference.yaml"
NAMESPACE = "epd-demo"
READY_SECONDS = 180
ENGINE_ROLES = ("encode", "prefill", "decode")
IDLE = (
    "The wind was cold and the river waited. Then the boat slept on the quiet road. The night was long and the rain "
    "fell. Then the horse stood on the dark bridge. The sky was grey and the field moved. "
)
STORY = f"Mira keeps the silver key in the barn. {IDLE * 4}Tom asks for honey. {IDLE}".strip()
"""A fact, and much else behind it: the sliding window alone would have forgotten it."""


class WrongAnswer(Exception):
    """The path worked, the model did not."""


@dataclass(frozen=True)
class Case:
    """A question, its right answer, and the roles that must have worked on it."""

    kind: str
    question: str
    content: list[Any]
    answer: str
    roles: tuple[str, ...]


def wait(kubeconfig: Path, name: str, console: Console) -> None:
    """Show the roles until everything is Ready.

    Raises:
        TimeoutError: It did not become Ready; the message names the command that tells why.
    """
    reader = Reader(config.new_client_from_config(config_file=str(kubeconfig)).configuration)
    deadline = time.monotonic() + READY_SECONDS
    with Live(console=console, auto_refresh=False) as live:
        while True:
            result: list[Deployment] = reader.deployments(NAMESPACE, name)
            if console.is_terminal:
                live.update(view(result, NAMESPACE), refresh=True)
            if result and result[0].ready:
                live.update(view(result, NAMESPACE), refresh=True)
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"not Ready after {READY_SECONDS} s. What is missing stands in the conditions: "
                    f"epd status {name} --namespace {NAMESPACE} --kubeconfig {kubeconfig}"
                )
            time.sleep(0.5)


def ask(url: str, model: str, messages: list[Any], rid: str) -> tuple[str, float]:
    """Send one chat through the router.

    Returns:
        The answer and the seconds it took.
    """
    began = time.monotonic()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=60) as client:
        answer = client.chat.completions.create(
            model=model, messages=messages, max_tokens=24, temperature=0, extra_headers={"X-Request-ID": rid}
        )
    return answer.choices[0].message.content or "", time.monotonic() - began


def legs(kube: Kube, name: str, rid: str) -> list[Object]:
    """What each engine pod recorded about its part of a request, asked of the pods themselves."""
    selector = f"app.kubernetes.io/instance={name},serving.epd.dev/role in (encode,prefill,decode)"
    result: list[Object] = []
    for pod in ready_pods(kube.pods(NAMESPACE, selector)):
        pod_name = pod["metadata"]["name"]
        for record in kube.pod_json(NAMESPACE, pod_name, 30000, "/v1/requests?limit=32")["requests"]:
            if str(record["id"]).startswith(rid):
                result += [leg for leg in record["legs"] if leg["pod"] == pod_name]
    return sorted(result, key=lambda leg: ENGINE_ROLES.index(leg["role"]))


def report(kube: Kube, name: str, rid: str, roles: Sequence[str]) -> Table:
    """Who served a request, and how long each stage took there."""

    def complete() -> list[Object]:
        seen = legs(kube, name, rid)
        return seen if set(roles) <= {leg["role"] for leg in seen} else []

    table = Table("role", "pod", "stages (ms)", box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for leg in until(f"the records of {', '.join(roles)}", complete, seconds=15):
        stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in leg["stages_ms"].items())
        table.add_row(leg["role"], leg["pod"], stages)
    return table


def cases() -> list[Case]:
    """What is asked, and what is right: a picture, and a fact told far before the question."""
    image_part = {"type": "image_url", "image_url": {"url": red_circle()}}
    seen, question = "What is in this picture?", "Where does Mira keep the silver key?"
    return [
        Case("image chat", seen, [image_part, {"type": "text", "text": seen}], RED_CIRCLE, ENGINE_ROLES),
        Case(
            "recall", question, [{"type": "text", "text": f"{STORY} {question}"}], "In the barn.", ("prefill", "decode")
        ),
    ]


def chats(kube: Kube, kubeconfig: Path, name: str, model: str, console: Console) -> list[str]:
    """Every case through the router, with what the pods say about it; a line for each wrong answer."""
    wrong = []
    with Forward(kubeconfig, NAMESPACE, f"svc/{name}", 8000) as url:
        for case in cases():
            rid = f"demo-{uuid.uuid4().hex[:12]}"
            answer, seconds = ask(url, model, [{"role": "user", "content": case.content}], rid)
            right = answer == case.answer
            console.print(f"\n[bold]{case.kind}[/bold]: {case.question}   [dim](request {rid}, {seconds:.2f} s)[/dim]")
            console.print(f"  answer: {answer!r}", "(right)" if right else "(WRONG)", markup=False)
            console.print(report(kube, name, rid, case.roles))
            if not right:
                wrong.append(f"{case.question} was answered {answer!r}: right is {case.answer!r}")
    return wrong


def run(console: Console) -> None:
    """All of it.

    Raises:
        WrongAnswer: The model answered, but not what is right.
    """
    stack = stacks.prepare()
    say("operator: installing the chart")
    stacks.install(stack)
    kube = Kube(stack.kubeconfig, manager="epd-demo")
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    deployment: Object = yaml.safe_load(SAMPLE.read_text())
    deployment["metadata"]["namespace"] = NAMESPACE
    name = deployment["metadata"]["name"]
    say(f"applying {SAMPLE.relative_to(stacks.ROOT)} to namespace {NAMESPACE}")
    kube.apply(deployment)
    wait(stack.kubeconfig, name, console)
    model = deployment["spec"].get("model", {}).get("servedName", name)
    wrong = chats(kube, stack.kubeconfig, name, model, console)
    console.print(
        "\n[bold]Try next[/bold]\n"
        f"  export KUBECONFIG={stack.kubeconfig}\n"
        f"  .venv/bin/epd status --namespace {NAMESPACE} --watch\n"
        f"  {stacks.kubectl_name()} --namespace {NAMESPACE} delete pod --selector serving.epd.dev/role=decode\n"
        f"  {stacks.kubectl_name()} explain dsv41.spec.roles.prefill\n",
        highlight=False,
        soft_wrap=True,
    )
    if wrong:
        raise WrongAnswer("; ".join(wrong))


def main() -> int:
    """Entry point; the exit status is 0, 1 when a step failed, 2 when this machine cannot do it."""
    argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__).parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    try:
        run(console)
    except Unfit as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode if error.returncode in {1, 2} else 1
    except (TimeoutError, ConnectionError, WrongAnswer, openai.APIError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return progress.interrupted()
    return 0


if __name__ == "__main__":
    sys.exit(main())
