"""`epd render` and `epd explain`: what would run, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epd_operator import __version__
from epd_operator.cli.document import read
from epd_operator.cli.render import UID, Options, planned_for
from epd_operator.runtime.config import from_environment

if TYPE_CHECKING:
    from tests.support.cli import Epd, Write

GOLDEN = Path(__file__).parents[1] / "plan" / "golden"
SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"
IMAGES = ("--router-image", "registry/epd-router:1", "--worker-image", "registry/epd-worker:1")


def objects(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def comparable(actual: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what the golden files leave out, and what only a cluster or a release gives."""
    text = json.dumps([{**obj, "data": None} if obj["kind"] == "ControllerRevision" else obj for obj in actual])
    whole: list[dict[str, Any]] = json.loads(text)
    for obj in whole:
        for owner in obj["metadata"].get("ownerReferences", ()):
            owner["uid"] = ""
    return whole


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.cr.yaml")), ids=lambda path: path.name)
def test_what_is_rendered_is_what_is_planned(path: Path) -> None:
    (reading,) = read([str(path)])
    (document,) = reading.documents
    made = planned_for(document, Options(router_image=IMAGES[1], worker_image=IMAGES[3])).objects
    planned = objects(path.with_name(path.name.replace(".cr.", ".plan.")).read_text(encoding="utf-8"))
    assert comparable(list(made)) == comparable(planned)


def test_everything_planned_is_printed_in_order(epd: Epd) -> None:
    answer = epd("render", *IMAGES, str(GOLDEN / "text.cr.yaml"))
    assert answer.status == 0, answer.err
    planned = objects((GOLDEN / "text.plan.yaml").read_text(encoding="utf-8"))
    assert comparable(objects(answer.out)) == comparable(planned)


def test_json_is_a_list(epd: Epd, write: Write) -> None:
    name = write()
    actual = json.loads(epd("render", "-o", "json", name).out)
    assert (actual["apiVersion"], actual["kind"]) == ("v1", "List")
    assert actual["items"] == objects(epd("render", name).out)


def test_the_placeholders_are_named(epd: Epd, write: Write, good: str) -> None:
    answer = epd("render", write(good.replace("  namespace: llm\n", "")))
    assert "placeholder" in answer.out.splitlines()[1]
    owners = {owner["uid"] for obj in objects(answer.out) for owner in obj["metadata"]["ownerReferences"]}
    assert owners == {UID}
    assert {obj["metadata"]["namespace"] for obj in objects(answer.out)} == {"default"}
    named = objects(epd("render", "-n", "other", "deploy.yaml").out)
    assert {obj["metadata"]["namespace"] for obj in named} == {"other"}


def images(text: str) -> set[str]:
    containers = [
        container
        for obj in objects(text)
        if obj["kind"] == "Deployment"
        for container in obj["spec"]["template"]["spec"]["containers"]
    ]
    return {container["image"] for container in containers}


def test_images_default_as_the_operator_s_do(epd: Epd, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EPD_ROUTER_IMAGE", "EPD_WORKER_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    config = from_environment({})
    assert images(epd("render", write()).out) == {config.router_image, config.worker_image}
    assert __version__ in config.router_image
    monkeypatch.setenv("EPD_ROUTER_IMAGE", "r:1")
    monkeypatch.setenv("EPD_WORKER_IMAGE", "w:1")
    assert images(epd("render", "deploy.yaml").out) == {"r:1", "w:1"}
    assert images(epd("render", *IMAGES, "deploy.yaml").out) == {IMAGES[1], IMAGES[3]}


@pytest.mark.parametrize("command", ["render", "explain"])
def test_what_is_refused_is_neither_rendered_nor_explained(
    command: str, epd: Epd, write: Write, good: str, bad: str
) -> None:
    answer = epd(command, write(bad))
    assert answer.status == 1
    assert "error[flag-unknown]" in answer.err
    assert "tp-size" not in answer.out
    answer = epd(command, write(f"{good}---\n{bad}"))
    assert answer.status == 1
    assert "demo" in answer.out


@pytest.mark.parametrize("command", ["render", "explain"])
def test_nothing_to_work_on_is_told(command: str, epd: Epd, write: Write) -> None:
    answer = epd(command, write("kind: ConfigMap\n"))
    assert answer.status == 2
    assert "no DeepSeekV41Deployment found" in answer.err
    assert epd(command, write("a: [")).status == 2


EXPLAINED = """\
apiVersion: serving.epd.dev/v1alpha1
kind: DeepSeekV41Deployment
metadata: {name: demo}
spec:
  engine: {type: Reference, version: "0.1"}
  transfer: {bootstrapPort: 9001}
  roles:
    prefill:
      args: {page-size: 16}
      env: {LOG_LEVEL: debug}
      secretEnv: {TOKEN: {name: secret, key: token}}
    decode:
      args: {page-size: 16}
"""


def test_every_part_is_traced_to_what_set_it(epd: Epd, write: Write) -> None:
    actual = json.loads(epd("explain", "-o", "json", write(EXPLAINED)).out)
    (document,) = actual["documents"]
    prefill, decode = document["roles"]
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    flags = {part["name"]: (part["text"], part["source"]) for part in prefill["flags"]}
    assert flags["page-size"] == ("--page-size 16", "spec.roles.prefill.args.page-size")
    assert flags["bootstrap-port"] == ("--bootstrap-port 9001", "spec.transfer.bootstrapPort")
    assert flags["served-model-name"] == ("--served-model-name demo", "operator, as spec.model.servedName is not set")
    assert flags["host"][1] == "operator"
    variables = {part["name"]: (part["text"], part["source"]) for part in prefill["environment"]}
    assert variables["LOG_LEVEL"] == ("debug", "spec.roles.prefill.env.LOG_LEVEL")
    assert variables["TOKEN"] == ("<key token of Secret secret>", "spec.roles.prefill.secretEnv.TOKEN")
    assert variables["POD_IP"] == ("<status.podIP of the pod>", "operator")


def test_the_parts_are_the_whole_command_line(epd: Epd, write: Write) -> None:
    name = write(EXPLAINED)
    explained = json.loads(epd("explain", "-o", "json", name).out)["documents"][0]["roles"]
    deployments = [obj for obj in objects(epd("render", name).out) if obj["kind"] == "Deployment"]
    for role in explained:
        (container,) = [
            obj["spec"]["template"]["spec"]["containers"][0]
            for obj in deployments
            if obj["metadata"]["labels"]["app.kubernetes.io/component"] == role["role"]
        ]
        words = " ".join([*role["program"], *(part["text"] for part in role["flags"])])
        assert words == " ".join([*container["command"], *container["args"]])
        assert [part["name"] for part in role["environment"]] == [entry["name"] for entry in container["env"]]


def test_people_get_a_table(epd: Epd, write: Write) -> None:
    answer = epd("explain", write(EXPLAINED))
    assert answer.status == 0
    assert answer.out.startswith("deploy.yaml: demo\n\nprefill: ")
    (line,) = [line for line in answer.out.splitlines() if "--page-size 16" in line and "prefill.args" in line]
    assert line.split("  ")[-1].strip() == "spec.roles.prefill.args.page-size"


def test_values_that_the_engine_settles_show_what_was_given(epd: Epd, write: Write) -> None:
    sample = yaml.safe_load((SAMPLES / "sglang-h200.yaml").read_text(encoding="utf-8"))
    sample["spec"]["roles"]["prefill"]["args"] |= {"page-size": 64, "kv-cache-dtype": "auto"}
    answer = epd("explain", "-o", "json", write(yaml.safe_dump(sample)))
    assert answer.status == 0, answer.err
    prefill = json.loads(answer.out)["documents"][0]["roles"][0]
    settled = {value["name"]: value for value in prefill["resolved"]}
    page_size = "spec.roles.prefill.args.page-size"
    assert settled["page_size"] == {
        "name": "page_size",
        "effective": 256,
        "given": 64,
        "source": page_size,
        "overridden": True,
    }
    assert (settled["kv_cache_dtype"]["given"], settled["kv_cache_dtype"]["overridden"]) == ("auto", False)
    assert settled["attn_dp_size"]["source"] == ""
    text = epd("explain", "deploy.yaml").out
    assert f"{page_size} = 64, overridden by the engine" in text
    assert "follows from spec.roles.prefill.args.kv-cache-dtype = auto" in text


def test_replay_is_explained_with_what_it_comes_to(epd: Epd, write: Write) -> None:
    def explained(text: str) -> tuple[dict[str, str], dict[str, tuple[str, Any]]]:
        (document,) = json.loads(epd("explain", "-o", "json", write(text)).out)["documents"]
        prefill = document["roles"][0]
        flags = {part["text"]: part["source"] for part in prefill["flags"] if "replay" in part["name"]}
        return flags, {one["name"]: (one["effective"], one["given"]) for one in prefill["resolved"]}

    assert explained(EXPLAINED) == ({}, {"decoder_replay": ("on", None), "encoder_replay": ("off", None)})
    asked = EXPLAINED.replace("prefill:\n", "prefill:\n      decoderReplay: 'Off'\n      encoderReplay: true\n")
    assert explained(asked) == (
        {
            "--decoder-replay off": "spec.roles.prefill.decoderReplay",
            "--encoder-replay on": "spec.roles.prefill.encoderReplay",
        },
        {"decoder_replay": ("off", "Off"), "encoder_replay": ("on", True)},
    )
