"""What is wrong with a checkpoint, or with options that do not suit it, is reported before a server starts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from epd_kernels import dispatch
from epd_kernels.dispatch import TORCH
from epd_workers.reference.engine.space import namespace
from epd_workers.reference.main import main
from epd_workers.reference.serving.options import UsageError, parse
from epd_workers.reference.serving.setup import limits_of, load
from tests.support.reference import checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FITTING = ("--context-length", "192", "--page-size", "4")


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(checkpoint, tmp_path / "copy")


def faults(path: Path, *flags: str, role: str = "aggregated") -> tuple[str, ...]:
    with pytest.raises(UsageError) as caught:
        load(parse(["--role", role, *FITTING, "--model-path", str(path), *flags]))
    return caught.value.faults


def edited(path: Path, **changes: object) -> None:
    file = path / "config.json"
    data = json.loads(file.read_text())
    for name, value in changes.items():
        (data if name in data else data["text_config"])[name] = value
    file.write_text(json.dumps(data))


def test_a_good_checkpoint_loads(checkpoint: Path) -> None:
    model = load(parse(["--role", "decode", *FITTING, "--model-path", str(checkpoint)]))
    assert model.config.context_length == 192


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "model.safetensors").write_bytes(b"x" * 100), "truncated or corrupt"),
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda path: (path / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda path: (path / "tokenizer.json").unlink(), "tokenizer.json cannot be read"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "tokenizer.json cannot be read"),
        (lambda path: edited(path, hidden_size=64), "has shape"),
        (lambda path: edited(path, head_dim=30), "head_dim is 30: must be a multiple of 32"),
        (lambda path: edited(path, model_type="llama"), "model_type is 'llama'"),
        (lambda path: edited(path, eos_token_id=3), "text_config.eos_token_id is 3: tokenizer.json has 257"),
        (lambda path: edited(path, image_token_id=3), "image_token_id is 3: tokenizer.json has 258"),
    ],
)
def test_a_bad_checkpoint_is_told(copy: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(copy)
    actual = faults(copy)
    assert any(words in fault for fault in actual), actual
    assert all(fault.startswith(f"--model-path is '{copy}': ") for fault in actual)


def test_all_that_is_wrong_is_told_at_once(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    (copy / "model.safetensors").write_bytes(b"")
    edited(copy, head_dim=30, o_groups=3)
    assert len(faults(copy)) == 4


def test_the_program_ends_with_status_2_and_no_traceback(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "config.json").unlink()
    (copy / "model.safetensors").write_bytes(b"")
    threads = torch.get_num_threads()
    assert main(["serve", "--role", "decode", "--model-path", str(copy)]) == 2
    torch.set_num_threads(threads)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("epd-reference: ") for line in lines)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--context-length", "9000"], "the checkpoint's max_position_embeddings is 8192"),
        (["--page-size", "5"], "page_size is 5: must be a positive multiple of every compress ratio"),
        (["--encoder-replay", "on", "--chunked-prefill-size", "11"], "needs room for them and a page, 12"),
        (
            ["--encoder-replay", "on", "--kv-disk-path", "d", "--kv-disk-bytes", "99"],
            "--kv-disk-bytes is 99: the file of a single page takes 4096; give that or more",
        ),
    ],
)
def test_options_that_do_not_suit_the_checkpoint(checkpoint: Path, flags: list[str], words: str) -> None:
    (fault,) = faults(checkpoint, *flags)
    assert words in fault


def test_kernels_that_cannot_run_here_are_told(checkpoint: Path) -> None:
    (fault,) = faults(checkpoint, "--kernels", "triton")
    assert fault.startswith("--kernels is 'triton': the device is a CPU")
    assert "TRITON_INTERPRET=1" in fault
    assert "--kernels torch" in fault


def test_triton_computes_in_float32_over_released_formats_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = replace(TORCH, name="triton", widest=torch.float32)
    monkeypatch.setattr(dispatch, "load", lambda wanted, _device: triton if wanted == "triton" else TORCH)
    given = ["--role", "decode", *FITTING, "--model-path", str(checkpoint)]
    assert load(parse(given)).weights.embed.weight.dtype == torch.float64
    model = load(parse([*given, "--kernels", "triton"]))
    assert model.operations is triton
    assert model.weights.embed.weight.dtype == torch.float32
    (fault,) = faults(checkpoint, "--kernels", "triton", "--kv-cache-dtype", "bf16")
    assert fault == "--kv-cache-dtype is 'bf16': Triton's kernels read only fp4; give that or --kernels torch"


def test_decode_follows_the_split_of_prefill_and_replays_nothing() -> None:
    flags = ["--decoder-replay-preset", "dsv41-37ae292e", "--encoder-replay", "on"]
    actual = {
        role: limits_of(parse(["--role", role, *flags])) for role in ("prefill", "aggregated", "decode", "encode")
    }
    assert {role: (limits.replay, limits.encoder_replay) for role, limits in actual.items()} == {
        "prefill": ("dsv41-37ae292e", True),
        "aggregated": ("dsv41-37ae292e", True),
        "decode": ("dsv41-37ae292e", False),
        "encode": (None, False),
    }
    off = limits_of(parse(["--role", "prefill", "--decoder-replay", "off", "--prefix-cache", "off"]))
    assert (off.replay, off.encoder_replay, off.prefix_cache) == (None, False, False)


@pytest.mark.parametrize(
    "flags",
    [[], ["--decoder-replay", "off"], ["--decoder-replay-preset", "dsv41-37ae292e"], ["--kv-cache-dtype", "bf16"]],
)
def test_prefill_and_decode_that_are_told_the_same_keep_windows_of_one_kind(checkpoint: Path, flags: list[str]) -> None:
    model = checkpoints.load(checkpoint, 192)
    spaces = {
        role: namespace(model, limits_of(parse(["--role", role, "--page-size", "4", *flags])), "llm/demo", "m")
        for role in ("prefill", "decode", "aggregated")
    }
    assert len(set(spaces.values())) == 1
    other = limits_of(parse(["--role", "decode", "--page-size", "8", *flags]))
    assert namespace(model, other, "llm/demo", "m") != spaces["decode"]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path / "nowhere")
    assert fault.endswith("there is no such directory")


def test_two_checkpoints_have_two_digests(checkpoint: Path, tmp_path: Path) -> None:
    other = checkpoints.load(checkpoints.write(tmp_path, seed=1), 192)
    assert other.config.digest != checkpoints.load(checkpoint, 192).config.digest


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-total-tokens", str(10**15)),
        ("--window-cache-tokens", str(10**20)),
        ("--max-running-requests", str(10**12)),
    ],
)
def test_caches_that_no_machine_has_are_one_message(
    checkpoint: Path, flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    assert main(["--role", "aggregated", *FITTING, "--model-path", str(checkpoint), *flags]) == 2
    torch.set_num_threads(threads)
    first, _ = capsys.readouterr().err.splitlines()
    assert "GiB, more than this machine has: lower max_total_tokens" in first
