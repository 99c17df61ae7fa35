"""Compiles kernels for GPUs that need not be there; needs a pytest process of its own."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

from epd_kernels.gate.__main__ import keep_compiled


def pytest_configure() -> None:
    """Refuse a process in which Triton interprets."""
    if triton.knobs.runtime.interpret or not isinstance(triton.language.softmax, JITFunction):
        raise pytest.UsageError(
            "Triton interprets kernels in this process, so nothing would be compiled: run tests/kernels/compiled in a"
            " pytest process of its own, without TRITON_INTERPRET"
        )
    torch.set_num_threads(1)
    keep_compiled()
