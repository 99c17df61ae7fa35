"""What bit-exact formats ask of the code of a GPU: subnormals are kept, and the one quotient is correctly rounded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch

from epd_kernels.formats.launch import warm
from epd_kernels.gate.target import TARGETS, Target, active
from epd_kernels.sizes import RELEASED

if TYPE_CHECKING:
    from pathlib import Path

# Codes decode through products of numbers that are subnormal in float32, and scales may be subnormal themselves.
FLUSHING = re.compile(r"\S+\.ftz\S*")
NVIDIA_QUOTIENT = re.compile(r"\bdiv\.(\w+)\S*\.f32")
AMD_DENORMALS = re.compile(r"\.amdhsa_float_denorm_mode_32\s+(\d)")
AMD_ROUNDED = "v_div_fixup_f32"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("name", ["pack main planar", "pack index planar", "pack window planar", "unpack main planar"])
def test_subnormals_are_kept_and_quotients_rounded(
    target: Target, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with active(target):
        code = dict(warm(RELEASED, torch.device("cpu")))[name].compile().asm
    divides = name == "pack main planar"
    if target.nvidia:
        assert FLUSHING.findall(code["ptx"]) == []
        assert set(NVIDIA_QUOTIENT.findall(code["ptx"])) == ({"rn"} if divides else set())
    else:
        assert AMD_DENORMALS.findall(code["amdgcn"]) == ["3"]  # operands and results both
        assert (AMD_ROUNDED in code["amdgcn"]) == divides
