"""Warming up compiles what serving hits, and says so."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
import torch
import triton

from epd_kernels import dispatch
from epd_kernels.gate.target import TARGETS, active
from epd_kernels.launching import Launch
from epd_kernels.sizes import RELEASED
from epd_kernels.warmup import OPERATIONS, VastTensor, launches, vast, warmup
from tests.kernels.cases import cases

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = torch.device("cpu")


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of kernels that are compiled meanwhile, and not found in this process."""
    names: list[str] = []

    def note(**given: object) -> None:
        names.append(str(given["fn"].name))  # type: ignore[attr-defined]  # Triton's wrapper

    with patch.object(triton.knobs.runtime, "jit_post_compile_hook", note):
        yield names


@pytest.mark.parametrize("target", ["sm_90", "gfx950"])
def test_serving_compiles_nothing_more(target: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "epd_kernels")
    with active(TARGETS[target]):
        with compilations() as first:
            warmed = warmup(RELEASED, CPU)
        assert {name.partition("/")[0] for name in warmed} == set(OPERATIONS)
        assert first
        messages = [record.getMessage() for record in caplog.records]
        assert [line for line in messages if line.startswith(f"kernels: compiled {warmed[0]} in ")]
        assert messages[-1].startswith(f"kernels: {len(warmed)} compiled in ")
        with compilations() as later, patch.object(Launch, "run", Launch.compile):
            operations = dispatch._triton()
            for case in cases(RELEASED):
                case.run(operations)
        assert later == []


def test_pools_of_the_served_size_are_another_kernel_on_amd() -> None:
    actual = {}
    for name in ("sm_90", "gfx950"):
        with active(TARGETS[name]):
            launch = next(one for _, one in launches(RELEASED, CPU) if one.name == "pack_kernel")
            assert any(isinstance(argument, VastTensor) for argument in vast(launch).arguments)
            actual[name] = launch.compile(), vast(launch).compile()
    near, far = actual["gfx950"]
    assert "tt.pointer_range" in near.asm["ttir"]
    assert near.asm["ttir"].count("tt.pointer_range") == far.asm["ttir"].count("tt.pointer_range") + 1
    near, far = actual["sm_90"]
    assert near is far
