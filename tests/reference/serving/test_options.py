from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epd_workers.reference.main import main
from epd_workers.reference.serving.options import FLAGS, Options, UsageError, parse, parse_or_exit

if TYPE_CHECKING:
    from pathlib import Path


def test_the_flags_that_the_operator_passes() -> None:
    arguments = (
        "--role prefill --host 0.0.0.0 --port 30000 --served-model-name m --bootstrap-port 8998 "
        "--encoder-bootstrap-port 8997 --context-length 8192 --page-size 64 --max-running-requests 16 "
        "--max-queued-requests 64 --chunked-prefill-size 512 --max-total-tokens 65536 --kv-cache-dtype bf16 "
        "--prefix-cache on --window-cache-tokens 4096 --decoder-replay off --decoder-replay-preset 0.5.23 "
        "--encoder-replay on --model-path /models/x --advertise-host 10.0.0.1 --layout-key k "
        "--swa-pool-config /etc/epd/swa-pool/pool.json --tenant llm/demo --swa-pool-publish all "
        "--kv-disk-path /pages "
        "--kv-disk-bytes 1000000 --kv-disk-hours 0.5"
    )
    options = parse(arguments.split())
    assert options == parse([f"{a}={b}" for a, b in zip(arguments.split()[::2], arguments.split()[1::2], strict=True)])
    assert (options.advertise_host, options.layout_key, options.vision) == ("10.0.0.1", "k", "remote")
    assert (options.kv_disk_path, options.kv_disk_bytes, options.kv_disk_hours) == ("/pages", 10**6, 0.5)
    assert (options.swa_pool_config, options.tenant) == ("/etc/epd/swa-pool/pool.json", "llm/demo")


@pytest.mark.parametrize(
    ("role", "vision"), [("encode", "local"), ("prefill", "remote"), ("decode", "remote"), ("aggregated", "local")]
)
def test_each_role_has_its_vision(role: str, vision: str) -> None:
    assert parse(["--role", role]).vision == vision


def test_every_flag_is_an_option_and_every_option_a_flag() -> None:
    assert {flag.attribute for flag in FLAGS} | {"pod"} == set(Options.__dataclass_fields__)


def test_all_faults_are_told_at_once() -> None:
    arguments = [
        "--rol",
        "decode",
        "--port",
        "x",
        "--page-size",
        "0",
        "--vision",
        "dim",
        "--max-images",
        "1.5",
        "stray",
        "--drain-timeout",
        "-1",
    ]
    with pytest.raises(UsageError) as caught:
        parse(arguments)
    assert caught.value.faults == (
        "unknown flag --rol, did you mean --role?",
        "unexpected argument 'decode'",
        "unexpected argument 'stray'",
        "--port is 'x': must be an integer",
        "--drain-timeout is -1: must be at least 0",
        "--page-size is 0: must be from 1 to 4096",
        "--vision is 'dim': must be one of local, remote, off",
        "--max-images is '1.5': must be an integer",
        "--role is missing: must be one of encode, prefill, decode, aggregated",
    )


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--role encode --vision off", "--vision is 'off': an encode server always encodes images; leave it out"),
        ("--role aggregated --vision remote", "give local or off"),
        ("--role decode --max-total-tokens 10 --page-size 64", "must hold at least one page of 64"),
        ("--role prefill --swa-pool-config f", "--swa-pool-config is given with --encoder-replay off"),
        ("--role aggregated --kv-disk-path d", "--kv-disk-path is given with --encoder-replay off"),
        (
            "--role prefill --encoder-replay on --prefix-cache off --kv-disk-path d",
            "--kv-disk-path is given with --prefix-cache off",
        ),
        ("--role prefill --encoder-replay on --swa-pool-config=", "--swa-pool-config is empty: name a file"),
        ("--role prefill --encoder-replay on --kv-disk-path=", "--kv-disk-path is empty: name a folder"),
        ("--role decode --kv-disk-hours 72", "--kv-disk-hours is given without --kv-disk-path: name the folder"),
        ("--role decode --kv-disk-path d", "--kv-disk-path is given without --swa-pool-config"),
        ("--role encode --kv-disk-bytes 9", "--kv-disk-bytes is given: an encode server keeps no windows"),
    ],
)
def test_flags_that_contradict_each_other(arguments: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        parse(arguments.split())


def test_all_faults_of_pool_and_disk_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse(["--role", "prefill", "--swa-pool-config=", "--kv-disk-bytes", "0", "--kv-disk-hours", "x"])
    unused = "--swa-pool-config is given with --encoder-replay off: no prompt would look there; "
    assert caught.value.faults == (
        "--kv-disk-bytes is 0: must be at least 1",
        "--kv-disk-hours is 'x': must be a number",
        "--swa-pool-config is empty: name a file, or leave it out",
        "--kv-disk-bytes is given without --kv-disk-path: name the folder, or leave it out",
        "--kv-disk-hours is given without --kv-disk-path: name the folder, or leave it out",
        unused + "give --encoder-replay on, or leave --swa-pool-config out",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "--role prefill --encoder-replay on --swa-pool-config f",
        "--role prefill --encoder-replay on --kv-disk-path d --kv-disk-hours 1",
        "--role decode --swa-pool-config f --kv-disk-path d",
        "--role decode --swa-pool-config f",
        "--role encode --tenant llm/demo",
    ],
)
def test_pool_and_disk_where_they_are_of_use(arguments: str) -> None:
    parse(arguments.split())


def test_where_peers_find_this_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_IP", raising=False)
    monkeypatch.setenv("POD_NAME", "demo-0")
    assert parse(["--role", "decode", "--host", "0.0.0.0"]).advertise_host == "127.0.0.1"
    assert parse(["--role", "decode", "--host", "10.0.0.9"]).advertise_host == "10.0.0.9"
    monkeypatch.setenv("POD_IP", "10.0.0.5")
    assert parse(["--role", "decode", "--host", "0.0.0.0"]).advertise_host == "10.0.0.5"
    assert parse(["--role", "decode", "--advertise-host", "x"]).advertise_host == "x"
    assert parse(["--role", "decode"]).pod == "demo-0"


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--role"], ["--nonsense=1"]])
def test_faults_end_the_program_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_or_exit(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert all(line.startswith("epd-reference: ") for line in error.splitlines())
    assert "--help" in error


def test_help_explains_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_or_exit(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{flag.name}" in text and flag.help.split()[0] in text for flag in FLAGS)


def test_a_model_directory_must_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--role", "decode", "--model-path", str(tmp_path / "nowhere")]) == 2
    assert "there is no such directory" in capsys.readouterr().err
