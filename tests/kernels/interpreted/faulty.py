"""Kernels with one fault each, and one without."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def halves(source: Any, output: Any) -> None:
    """A race: programs 2n and 2n + 1 both write element n."""
    number = tl.program_id(0)
    tl.store(output + number // 2, tl.load(source + number))


@triton.jit
def neighbours(source: Any, output: Any) -> None:
    """A race: a program reads what the one before it writes."""
    number = tl.program_id(0)
    before = tl.load(output + number - 1, mask=number > 0, other=0)
    tl.store(output + number, tl.load(source + number) + before)


@triton.jit
def counted(source: Any, output: Any) -> None:
    """Not to be repeated: adds to what is there."""
    number = tl.program_id(0)
    tl.store(output + number, tl.load(output + number) + tl.load(source + number))


@triton.jit
def beyond(source: Any, output: Any) -> None:
    """Writes one element too many."""
    number = tl.program_id(0)
    tl.store(output + number + 1, tl.load(source + number))


@triton.jit
def peeking(source: Any, output: Any) -> None:
    """Reads one element too many."""
    number = tl.program_id(0)
    tl.store(output + number, tl.load(source + number + 1))


@triton.jit
def scribbling(source: Any, output: Any) -> None:
    """Writes into its input."""
    number = tl.program_id(0)
    tl.store(output + number, tl.load(source + number))
    tl.store(source + number, 0.0)


@triton.jit
def summed(source: Any, output: Any) -> None:
    """An atomic sum."""
    tl.atomic_add(output, tl.load(source + tl.program_id(0)))


@triton.jit
def copied(source: Any, output: Any) -> None:
    """Nothing is wrong with it."""
    number = tl.program_id(0)
    tl.store(output + number, tl.load(source + number))
