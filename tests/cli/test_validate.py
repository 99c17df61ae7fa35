"""`epd validate` on files, folders and standard input."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epd_operator.cli.record import SCHEMA
from epd_operator.cli.terminal import clean
from epd_operator.cli.terminal import write as write_line
from tools.docs.page import ROOT

if TYPE_CHECKING:
    from tests.support.cli import Epd, Write


def test_a_good_file_is_accepted(epd: Epd, write: Write) -> None:
    answer = epd("validate", write())
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.startswith("deploy.yaml: llm/demo: accepted")
    assert answer.out.endswith("1 document: 1 accepted\n")


def test_a_bad_file_is_refused_with_every_finding_and_its_line(epd: Epd, write: Write, bad: str) -> None:
    answer = epd("validate", write(bad))
    assert (answer.status, answer.err) == (1, "")
    assert "error[structure] must be a valid integer\n   --> deploy.yaml:14:7\n" in answer.out
    assert (
        "    14 |       replicas: two\n       |       ^^^^^^^^^^^^^ spec.roles.prefill.replicas = 'two'\n" in answer.out
    )
    assert "error[flag-unknown] prefill: " in answer.out
    assert "17 |         chunkd-prefill-size: 8192\n" in answer.out
    assert "    fix: did you mean chunked-prefill-size?\n" in answer.out
    assert "error[flag-owned] decode: " in answer.out
    assert "       |                          ^^^^^^^ spec.roles.decode.args.port = 1\n" in answer.out
    assert "(SGLang 0.5.23 on cuda-sm90)" in answer.out.split("\n")[0]


def test_the_last_line_counts(epd: Epd, write: Write, good: str, bad: str) -> None:
    answer = epd("validate", write(good, "a.yaml"), write(f"kind: ConfigMap\n---\n{bad}", "b.yaml"))
    last = answer.out.splitlines()[-1]
    errors = answer.out.count("  error[")
    assert last.startswith(f"2 documents: 1 refused ({errors} errors")
    assert last.endswith(", 1 accepted; 1 of other kinds skipped")


def test_platform_and_version_can_be_asked_for(epd: Epd, write: Write, bad: str) -> None:
    answer = epd("validate", "--platform", "cuda-sm100", write(bad))
    assert "on cuda-sm100)" in answer.out.split("\n")[0]
    answer = epd("validate", "--engine-version", "0.4.0", write(bad))
    assert answer.status == 1
    assert "error[engine-version]" in answer.out
    assert "spec.engine.version = 0.4.0 (by --engine-version)" in answer.out


def test_another_engine_is_not_asked_about_platforms_of_sglang(epd: Epd, write: Write) -> None:
    assert epd("validate", "--platform", "cuda-sm100", "--engine-version", "0.5.23", write()).status == 0


def test_a_word_that_yaml_takes_for_a_boolean_is_explained(epd: Epd, write: Write, bad: str) -> None:
    answer = epd("validate", write(bad.replace("replicas: two", "decoderReplay: On")))
    assert "decoderReplay = true (YAML takes On for true: quote it)" in answer.out


LIVE = {
    "apiVersion": "serving.epd.dev/v1alpha1",
    "kind": "DeepSeekV41Deployment",
    "metadata": {
        "name": "demo",
        "namespace": "llm",
        "uid": "1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {"engine": {"type": "Reference", "version": "0.1"}, "roles": {"prefill": {}, "decode": {}}},
    "status": {"observedGeneration": "anything"},
}


@pytest.mark.parametrize(
    "text",
    [
        yaml.safe_dump(LIVE),
        json.dumps(LIVE),
        json.dumps(LIVE, indent="\t"),
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [LIVE]}),
        yaml.safe_dump(
            {"apiVersion": "serving.epd.dev/v1alpha1", "kind": "DeepSeekV41DeploymentList", "items": [LIVE]}
        ),
        json.dumps({"kind": "List", "items": [{"kind": "List", "items": [LIVE]}]}),
        "\ufeff" + yaml.safe_dump(LIVE),
    ],
    ids=["live", "json", "json-tabs", "list", "typed-list", "nested", "mark"],
)
def test_every_form_that_tools_write_is_read(epd: Epd, write: Write, text: str) -> None:
    answer = epd("validate", write(text))
    assert (answer.status, answer.out.splitlines()[-1]) == (0, "1 document: 1 accepted")


def test_a_finding_in_a_list_has_its_own_line(epd: Epd, write: Write, bad: str) -> None:
    items = yaml.safe_dump({"kind": "List", "items": [LIVE, yaml.safe_load(bad)]}, sort_keys=False)
    answer = epd("validate", "-o", "json", write(items))
    lines = items.splitlines()
    for finding in json.loads(answer.out)["documents"][1]["findings"]:
        if finding["rule"] == "flag-unknown":
            assert "chunkd-prefill-size" in lines[finding["line"] - 1]
            break
    else:
        pytest.fail("nothing found")


def test_standard_input(epd: Epd, monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bad.encode())))
    answer = epd("validate", "-")
    assert answer.status == 1
    assert "--> <stdin>:14:7" in answer.out


def test_folders_are_searched_for_what_is_ours(epd: Epd, write: Write, good: str, bad: str) -> None:
    write(good, "in/a.yaml")
    write(bad, "in/deep/b.yml")
    write(json.dumps(LIVE), "in/deep/c.json")
    write("not: [yaml", "in/broken.yaml")
    write("", "in/empty.yaml")
    write(b"\xff", "in/binary.json")
    write(bad, "in/notes.txt")
    write(bad, "in/.git/d.yaml")
    answer = epd("validate", "in")
    assert (answer.status, answer.err) == (1, "")
    assert answer.out.splitlines()[-1].startswith("3 documents: 1 refused")


def test_a_file_of_a_folder_that_names_our_kind_must_be_readable(epd: Epd, write: Write, good: str) -> None:
    write(good, "in/a.yaml")
    write("kind: DeepSeekV41Deployment\n\tspec: 1\n", "in/b.yaml")
    write(b"kind: DeepSeekV41Deployment\nspec: \xff\n", "in/c.yaml")
    answer = epd("validate", "in")
    assert answer.status == 2
    assert "in/b.yaml:2:1: unusable: it is not YAML: a tab cannot indent: use spaces" in answer.err
    assert "in/c.yaml:2:7: unusable: it is not UTF-8 (byte 0xff): save it as UTF-8" in answer.err
    assert answer.out.endswith("1 document: 1 accepted; 2 files could not be used\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n---\n", "is empty"),
        ("just words", "does not hold a Kubernetes object"),
        ("kind: DeepSeekV41Deployment\nspec: {{ .Values.spec }}\n", "helm template"),
        ("kind: DeepSeekV41Deployment\nkind: x\n", "'kind' twice in one object, first in line 1"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_message(epd: Epd, write: Write, text: str, message: str) -> None:
    answer = epd("validate", write(text))
    assert answer.status == 2
    assert message in answer.err
    assert answer.err.count("unusable") == 1


@pytest.mark.parametrize("name", ["missing.yaml", "a\0b", "/"])
def test_files_that_are_not_there(epd: Epd, write: Write, name: str) -> None:
    write()
    answer = epd("validate", name if name != "/" else "deploy.yaml/x")
    assert answer.status == 2
    assert "it cannot be read" in answer.err


def test_what_was_readable_is_still_judged(epd: Epd, write: Write, good: str) -> None:
    answer = epd("validate", write(f"{good}---\na: [\n"))
    assert answer.status == 2
    assert "llm/demo: accepted" in answer.out


def test_other_kinds_are_passed_over(epd: Epd, write: Write) -> None:
    answer = epd("validate", write("apiVersion: v1\nkind: ConfigMap\n"))
    assert (answer.status, answer.out) == (0, "no DeepSeekV41Deployment found; 1 of other kinds skipped\n")


def test_a_kind_misspelt_in_our_group_is_not_passed_over(epd: Epd, write: Write, good: str) -> None:
    answer = epd("validate", write(good.replace("kind: DeepSeekV41Deployment", "kind: DeepseekV41Deployment")))
    assert answer.status == 1
    assert "kind = DeepseekV41Deployment" in answer.out


def test_hooks_pass_files_that_are_not_ours(epd: Epd, write: Write, good: str) -> None:
    names = [write("{{ broken", "t.yaml"), write("", "e.yaml"), write(b"\xff\xff", "b.yaml"), write(good, "g.yaml")]
    answer = epd("validate", "--ours-only", *names)
    assert (answer.status, answer.err, answer.out.splitlines()[-1]) == (0, "", "1 document: 1 accepted")
    assert epd("validate", *names).status == 2


def test_strict_refuses_warnings(epd: Epd, write: Write, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nearest makes unknown flags a warning.
    lenient = (
        bad.replace('version: "0.5.23"', 'version: "0.5.99", versionPolicy: Nearest')
        .replace("engine:\n    type", "engine: {type")
        .replace("\n    version", ", version")
        .replace("\n    platform", ", platform")
        .replace("\n    image: registry.example/sglang:v0.5.23", ", image: registry.example/sglang:v0.5.23}")
        .replace("replicas: two", "replicas: 2")
        .replace(", port: 1", "")
    )
    name = write(lenient)
    actual = json.loads(epd("validate", "-o", "json", name).out)["documents"][0]
    assert "flag-unknown" in {finding["rule"] for finding in actual["findings"] if finding["severity"] == "warning"}
    assert actual["approximate"] is True
    errors = sorted({finding["rule"] for finding in actual["findings"] if finding["severity"] == "error"})
    accepted = lenient.replace("versionPolicy: Nearest", f"versionPolicy: Nearest, acknowledge: {json.dumps(errors)}")
    write(accepted)
    assert epd("validate", name).status == 0
    answer = epd("validate", "--strict", name)
    assert answer.status == 1
    assert "refused (" in answer.out.splitlines()[-1]


def test_json_is_one_document_of_a_named_schema(epd: Epd, write: Write, good: str, bad: str) -> None:
    names = [write(good, "a.yaml"), write(bad, "b.yaml"), write("a: [", "c.yaml")]
    answer = epd("validate", "-o", "json", *names)
    actual: dict[str, Any] = json.loads(answer.out)
    assert (answer.status, actual["schema"], actual["exitStatus"]) == (2, SCHEMA, 2)
    assert actual["summary"] | {"errors": 0, "warnings": 0} == {
        "documents": 2,
        "accepted": 1,
        "refused": 1,
        "errors": 0,
        "warnings": 0,
        "skipped": 0,
        "unreadable": 1,
    }
    assert actual["unreadable"] == [
        {"file": "c.yaml", "line": 2, "column": 1, "message": actual["unreadable"][0]["message"]}
    ]
    refused = actual["documents"][1]
    assert (refused["file"], refused["name"], refused["accepted"]) == ("b.yaml", "bad", False)
    (owned,) = [finding for finding in refused["findings"] if finding["rule"] == "flag-owned"]
    assert (owned["file"], owned["line"], owned["column"], owned["role"]) == ("b.yaml", 19, 26, "decode")
    assert owned["sides"] == [
        {"field": "spec.roles.decode.args.port", "written": 1, "effective": None, "line": 19, "column": 26}
    ]


def test_colours_are_for_terminals(epd: Epd, write: Write, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write(bad)
    assert "\x1b" not in epd("validate", name).out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31;1merror[structure]\x1b[0m" in epd("validate", name).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in epd("validate", name).out


def test_a_document_cannot_steer_the_terminal(epd: Epd, write: Write, bad: str) -> None:
    answer = epd("validate", write(bad.replace("replicas: two", 'replicas: "\\e]0;x\\a\\u202e"')))
    assert "\x1b" not in answer.out
    assert "\\x1b]0;x\\x07\\u202e" in answer.out


def test_characters_that_the_stream_lacks_are_escaped() -> None:
    class Ascii(io.StringIO):
        encoding = "ascii"

    stream = Ascii()
    write_line(clean("ü\ud800"), stream)
    assert stream.getvalue() == "\\xfc\\ud800\n"


@pytest.mark.parametrize("place", ["name: bad", "replicas: two", "chunkd-prefill-size", "tp-size: 4\n", '0.5.23"'])
def test_nothing_in_a_document_makes_lines_or_colours_of_its_own(
    epd: Epd, write: Write, bad: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    forged = "\\e[32;1maccepted\\e[0m\\nforged.yaml: accepted"
    key, colon, _ = place.partition(":")
    text = f'{key}: "{forged}"\n' if colon else f'"{forged}"' if key.startswith("chunkd") else f'{forged}"'
    answer = epd("validate", write(bad.replace(place, text, 1)))
    assert "forged" in answer.out
    assert "\x1b[32;1m" not in answer.out
    assert not [line for line in answer.out.splitlines() if line.startswith("forged")]


def test_a_file_name_cannot_forge_lines(epd: Epd, write: Write, bad: str) -> None:
    answer = epd("validate", write(bad, "a\nforged.yaml: accepted.yaml"))
    assert not [line for line in answer.out.splitlines() if line.strip().startswith("forged")]


def test_what_is_no_file_is_passed_over_in_folders(epd: Epd, write: Write, good: str, tmp_path: Path) -> None:
    write(good, "in/a.yaml")
    os.mkfifo(tmp_path / "in" / "pipe.yaml")
    (tmp_path / "in" / "gone.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "in" / "zero.yaml").symlink_to("/dev/zero")
    answer = epd("validate", "in")
    assert (answer.status, answer.err, answer.out.splitlines()[-1]) == (0, "", "1 document: 1 accepted")


def _run(words: list[str], stdout: Any) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "epd_operator.cli.main", *words]
    return subprocess.run(program, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60)


@pytest.mark.parametrize("form", ["text", "json", "sarif"])
def test_the_verdict_outlives_the_reader_of_the_output(write: Write, bad: str, form: str) -> None:
    name = write("---\n".join([bad] * 40))
    reading, writing = os.pipe()
    os.close(reading)
    done = _run(["validate", "-o", form, name], writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", ["validate", "explain", "render"])
def test_output_that_cannot_be_written_is_one_line(write: Write, good: str, command: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = _run([command, write(good)], full)
    assert done.returncode == 2
    assert done.stderr == "epd: the output cannot be written: No space left on device\n"


def test_an_acknowledgement_without_effect_is_no_reason_to_refuse(epd: Epd, write: Write, good: str) -> None:
    row = {"id": "made-up", "versions": ["0.1"], "says": "it hangs", "fix": "wait", "source": "nobody"}
    name = write(good.replace('"0.1"}', '"0.1", acknowledge: [made-up]}'))
    known = write(json.dumps([row]), "advisories.yaml")
    for command in ("validate", "explain", "render"):
        assert epd(command, name).status == 0
    assert "acknowledge-unknown" in epd("explain", name).err
    answer = epd("explain", "--advisories", known, name)
    assert answer.status == 0
    assert "acknowledge-unknown" not in answer.err
    assert "made-up" in answer.err
    assert epd("explain", "--advisories", write("[7]", "bad.yaml"), name).status == 2


@pytest.mark.parametrize("name", ["Bad NS", "", "-a", "a" * 64, "a.b"])
def test_a_namespace_that_cannot_be_is_refused(epd: Epd, write: Write, name: str) -> None:
    answer = epd("render", f"--namespace={name}", write())
    assert (answer.status, answer.out) == (2, "")
    assert "is not a namespace name" in answer.err


def test_a_path_with_any_name_is_read(epd: Epd, write: Write, good: str) -> None:
    assert epd("validate", write(good, "ein ä.yaml")).status == 0


@pytest.mark.parametrize(
    "words",
    [
        ["validate"],
        ["validate", "a.yaml", "--", "--tp"],
        ["validate", "a.yaml", "--cases", "x"],
        ["validate", "a.yaml", "--role", "prefill"],
        ["validate", "--cases", "x", "-o", "json"],
        ["validate", "--platform", "abacus", "a.yaml"],
    ],
)
def test_wrong_usage_is_told(epd: Epd, words: list[str]) -> None:
    answer = epd(*words)
    assert answer.status == 2
    assert "epd validate: error: " in answer.err
    assert answer.err.startswith("usage: epd validate ")


def test_config_map_volumes_are_read(epd: Epd, write: Write, good: str, tmp_path: Path) -> None:
    """A kubelet shows each key as a link into a hidden folder."""
    write(good, "volume/..2026_01_01/demo.yaml")
    (tmp_path / "volume" / "..data").symlink_to("..2026_01_01")
    (tmp_path / "volume" / "demo.yaml").symlink_to("..data/demo.yaml")
    assert epd("validate", "volume").out.splitlines()[-1] == "1 document: 1 accepted"


def test_advisories_warn_until_they_are_acknowledged(epd: Epd, write: Write, good: str) -> None:
    row = {"id": "made-up", "versions": ["0.1"], "says": "it hangs", "fix": "wait", "source": "nobody"}
    name, known = write(good), write(json.dumps([row]), "advisories.yaml")
    assert "made-up" not in epd("validate", name).out
    answer = epd("validate", "--advisories", known, name)
    assert answer.status == 0
    assert "warning[made-up]" in answer.out
    assert epd("validate", "--strict", "--advisories", known, name).status == 1
    write(good.replace('"0.1"}', '"0.1", acknowledge: [made-up]}'))
    assert epd("validate", "--strict", "--advisories", known, name).status == 0
    assert epd("validate", "--advisories", write("[7]", "bad.yaml"), name).status == 2


TIER = ("--", "--model-path", "m", "--encoder-only")


def test_a_command_line_is_judged_with_the_plugin(epd: Epd) -> None:
    alone, plugged = epd("validate", *TIER), epd("validate", "--plugin", "epd", *TIER)
    assert (alone.status, plugged.status) == (1, 0)
    assert "[vision-tier-unsupported]" in alone.out
    refused = epd(
        "validate", "--plugin", "epd", "--", "--model-path", "m", "--language-only", "--tokenizer-worker-num", "2"
    )
    assert (refused.status, "[language-only-tokenizers]" in refused.out) == (1, True)


def test_many_command_lines_are_judged_with_the_plugin(epd: Epd, write: Write) -> None:
    name = write(json.dumps({"id": 1, "platform": "cpu", "argv": ["--encoder-only"]}) + "\n", "cases.jsonl")
    assert json.loads(epd("validate", "--plugin", "epd", "--cases", name).out)["accepted"] is True
    alone = epd("validate", "--cases", name)
    assert (alone.status, "platform is 'cpu'" in alone.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--platform", "cpu", *TIER), "add --plugin epd"),
        (("--plugin", "epd", "--engine-version", "dsv41-2026-09", *TIER), "made for SGLang 0.5.23"),
        (("--plugin", "epd", "deploy.yaml"), "spec.engine.plugins"),
        (("--plugin", "other", *TIER), "invalid choice"),
    ],
)
def test_a_plugin_that_cannot_be_is_refused(epd: Epd, write: Write, words: tuple[str, ...], message: str) -> None:
    write()
    answer = epd("validate", *words)
    assert (answer.status, message in answer.err) == (2, True)
    assert answer.out == ""


def test_another_platform_is_tried_with_the_plugin_of_the_object(epd: Epd) -> None:
    sample = str(ROOT / "manifests/samples/sglang-cpu.yaml")
    assert epd("validate", "--strict", sample).status == 0
    answer = epd("validate", "--platform", "cuda-sm90", sample)
    assert "SGLang 0.5.23 on cuda-sm90" in answer.out
