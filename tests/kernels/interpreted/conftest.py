"""Runs kernels in Triton's interpreter; needs a pytest process of its own."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

# Triton decides when it is imported what `jit` makes, its own library's functions included.
os.environ["TRITON_INTERPRET"] = "1"

import triton.language
from triton.runtime.interpreter import InterpretedFunction


def pytest_configure() -> None:
    """Refuse a process in which Triton compiles."""
    if not isinstance(triton.language.softmax, InterpretedFunction):
        raise pytest.UsageError(
            "Triton was imported in this process before TRITON_INTERPRET=1 was set, so it would compile kernels:"
            " run tests/kernels/interpreted in a pytest process of its own"
        )
    # Kernels compute infinities on purpose, as in log(0); a GPU does not warn either.
    np.seterr(all="ignore")
    # A second thread costs more than it saves at these sizes, and order of sums must not depend on the machine.
    torch.set_num_threads(1)
