"""Which bytes of its arguments a launch moves, program by program, seen in Triton's interpreter."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from triton.runtime import interpreter

from tests.kernels.interpreted.programs import tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from epd_kernels.launching import Launch

    Bytes = NDArray[np.bool_]
    Places = NDArray[np.int64]

Program = tuple[int, int, int]


class Stray(AssertionError):
    """A program touched an address that lies in none of the launch's arguments."""


@dataclass
class Span:
    """One argument's bytes, and how often they were touched.

    Attributes:
        begin: Address of its first byte.
        now: Whether the running program touched each byte.
        touched: Whether any program touched it.
        moved: Bytes touched, as often as they were.
        repeated: Of these, touches of a byte that the same program had touched before.
    """

    begin: int
    now: Bytes
    touched: Bytes
    moved: int = 0
    repeated: int = 0
    _running: int = 0

    @classmethod
    def of(cls, tensor: Tensor) -> Span:
        """Of a tensor, from its first element to its last, gaps of its strides included."""
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        elements = sum((size - 1) * stride for size, stride in pairs) + 1 if tensor.numel() else 0
        size = elements * tensor.element_size()
        return cls(tensor.data_ptr(), np.zeros(size, np.bool_), np.zeros(size, np.bool_))

    @property
    def distinct(self) -> int:
        """Bytes that any program touched."""
        return int(self.touched.sum())

    def holds(self, first: int, last: int) -> bool:
        """Whether both addresses, and so all between them, are ours."""
        return self.begin <= first and last < self.begin + len(self.now)

    def touch(self, places: Places, size: int) -> None:
        """Count elements of `size` bytes at addresses [n] that the running program moves."""
        for byte in range(size):
            self.now[places - self.begin + byte] = True
        self._running += size * len(places)

    def end_program(self) -> None:
        """Sum up the program that has run."""
        if self._running:
            self.moved += self._running
            self.repeated += self._running - int(np.count_nonzero(self.now))
            self.touched |= self.now
            self.now[:] = False
            self._running = 0


@dataclass
class Trace:
    """A launch's loads and stores.

    Attributes:
        loads: By argument.
        stores: By argument.
        program: Which runs.
    """

    loads: dict[str, Span]
    stores: dict[str, Span]
    program: Program | None = None
    _seen: set[Program] = field(default_factory=set)

    @property
    def loaded(self) -> int:
        """Bytes loaded by all programs."""
        return sum(span.moved for span in self.loads.values())

    @property
    def stored(self) -> int:
        """Bytes stored by all programs."""
        return sum(span.moved for span in self.stores.values())

    def enter(self, program: Program) -> None:
        """Note which program moves the next bytes."""
        if program != self.program:
            self.leave()
            assert program not in self._seen, "a program ran in two pieces"
            self._seen.add(program)
            self.program = program

    def leave(self) -> None:
        """Sum up the running program."""
        for span in (*self.loads.values(), *self.stores.values()):
            span.end_program()

    def touch(self, spans: dict[str, Span], pointers: Any, mask: Any) -> None:
        """Count one instruction's bytes where its mask is true.

        Raises:
            Stray: They are not in one argument.
        """
        self.enter(tuple(interpreter.interpreter_builder.grid_idx))
        places = np.broadcast_to(pointers.data, mask.data.shape)[mask.data.astype(np.bool_)].astype(np.int64)
        if not len(places):
            return
        size = np.dtype(interpreter._get_np_dtype(pointers.get_element_ty())).itemsize
        first, last = int(places.min()), int(places.max()) + size - 1
        span = next((span for span in spans.values() if span.holds(first, last)), None)
        if span is None:
            raise Stray(f"program {self.program} touches {first:#x} to {last:#x}, which is in no argument")
        span.touch(places, size)


def trace(launch: Launch) -> Trace:
    """Run a launch and see what it moves. Arguments must not overlap.

    Raises:
        triton.runtime.errors.InterpreterError: A program failed; for a stray access the message says so.
    """
    loads, stores = ({name: Span.of(tensor) for name, tensor in tensors_of(launch).items()} for _ in range(2))
    actual = Trace(loads, stores)
    with _watched(actual):
        launch.run()
    actual.leave()
    return actual


@contextmanager
def _watched(actual: Trace) -> Iterator[None]:
    builder = interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store

    def watched_load(pointers: Any, mask: Any, *others: Any) -> Any:
        actual.touch(actual.loads, pointers, mask)
        return load(pointers, mask, *others)

    def watched_store(pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        actual.touch(actual.stores, pointers, mask)
        return store(pointers, value, mask, *others)

    # Plain loads and stores go through the masked ones.
    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    try:
        yield
    finally:
        del builder.create_masked_load, builder.create_masked_store
