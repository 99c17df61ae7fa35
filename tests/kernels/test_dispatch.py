from __future__ import annotations

import logging
import re
import subprocess
import sys
from dataclasses import fields
from subprocess import CalledProcessError
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import triton

from epd_kernels import dispatch
from epd_kernels.architecture import UnknownArchitecture
from epd_kernels.dispatch import CHOICES, TORCH, Unavailable
from epd_kernels.sizes import RELEASED
from epd_kernels.warmup import warmup
from epd_workers.reference.serving.options import FLAGS

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    dispatch._tell.cache_clear()


def hinder(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    monkeypatch.setattr(dispatch, "_hindrance", lambda _device: reason)


def test_a_cpu_gets_torch_and_hears_it_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert dispatch.load("auto", CPU) is dispatch.load("auto", CPU) is dispatch.load("torch", CPU) is TORCH
    assert caplog.messages == ["kernels: torch, chosen automatically: the device is a CPU"]


def test_triton_on_a_cpu_fails_and_names_the_way_out() -> None:
    with pytest.raises(Unavailable, match=r"TRITON_INTERPRET=1 in the environment .*, or use the torch operations"):
        dispatch.load("triton", CPU)


def test_triton_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(Unavailable, match="install triton, or use the torch operations"):
        dispatch.load("triton", CUDA)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("0 active drivers"),
        OSError("libcuda.so.1: cannot open shared object file"),
        ImportError("cuda_utils"),
        CalledProcessError(1, ["gcc"]),
    ],
)
def test_a_gpu_that_triton_has_no_driver_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(triton.runtime.driver, "_active", Mock(get_current_target=Mock(side_effect=error)))
    with pytest.raises(Unavailable, match=rf"no driver .*{re.escape(str(error))}.* use the torch operations"):
        dispatch.load("triton", CUDA)
    with pytest.raises(UnknownArchitecture, match="no driver"):
        warmup(RELEASED, CUDA)
    assert dispatch.load("auto", CUDA) is TORCH
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_another_device_gets_torch(kind: str) -> None:
    assert dispatch.load("auto", torch.device(kind)) is TORCH
    with pytest.raises(Unavailable, match=f"the device is {kind}: .*; use the torch operations"):
        dispatch.load("triton", torch.device(kind))


def test_an_automatic_choice_falls_back_and_says_why_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hinder(monkeypatch, "this GPU is sm_75")
    assert dispatch.load("auto", CUDA) is dispatch.load("auto", CUDA) is TORCH
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "kernels: torch, chosen automatically: this GPU is sm_75")
    ]
    with pytest.raises(Unavailable, match="this GPU is sm_75"):
        dispatch.load("triton", CUDA)


@pytest.mark.parametrize("wanted", ["auto", "triton"])
def test_a_gpu_with_tiles_gets_triton(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: str
) -> None:
    caplog.set_level(logging.INFO)
    hinder(monkeypatch, "")
    actual = dispatch.load(wanted, CUDA)
    assert (actual.name, actual.widest) == ("triton", torch.float32)
    messages = ["kernels: triton, chosen automatically: there are tiles for this GPU"]
    assert caplog.messages == (messages if wanted == "auto" else [])


def test_both_have_every_operation_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    hinder(monkeypatch, "")
    triton = dispatch.load("triton", CUDA)
    for name in [field.name for field in fields(TORCH) if field.name not in {"name", "widest"}]:
        for operations, module in ((TORCH, "reference"), (triton, "launch")):
            function: Any = getattr(operations, name)
            assert function.__name__ == name
            assert function.__module__.endswith(f".{module}")


def test_another_choice_is_an_error() -> None:
    with pytest.raises(ValueError, match="kernels are 'cuda': must be one of auto, torch, triton"):
        dispatch.load("cuda", CPU)


def test_the_flag_offers_the_choices() -> None:
    (flag,) = [flag for flag in FLAGS if flag.name == "kernels"]
    assert (flag.choices, flag.default) == (CHOICES, "auto")


def test_the_torch_operations_need_no_triton() -> None:
    code = "import sys; from epd_kernels import dispatch; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
