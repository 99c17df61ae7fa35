"""Run a launch's programs in other orders and more than once, amid guard bytes, and say what depends on it.

The interpreter runs programs one after another, so a race never shows by itself. Here it does: every byte that a
program reads or writes is noted, and no program may touch what another writes; and whatever order the programs run in,
however often, and whatever lies around and in the buffers beforehand, the bytes that come out must be the same.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from epd_kernels.launching import Launch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

GUARD: Final = 4096
"""Bytes on either side of every buffer."""
NAN, FINITE = 0xFF, 0x5A
"""What guards are filled with: NaN in every floating-point format and -1, and something harmless-looking."""


@dataclass
class Traffic:
    """The bytes that programs touched: addresses and program numbers, side by side, each pair once."""

    reads: list[np.ndarray] = field(default_factory=list)
    writes: list[np.ndarray] = field(default_factory=list)

    def pairs(self, touched: list[np.ndarray]) -> np.ndarray:
        """[n, 2] addresses and programs, rising."""
        return np.unique(np.concatenate([np.empty((0, 2), np.int64), *touched]), axis=0)

    def races(self) -> dict[int, str]:
        """What is wrong with an address that one program writes and another touches, by address."""
        writes, reads = self.pairs(self.writes), self.pairs(self.reads)
        addresses, counts = np.unique(writes[:, 0], return_counts=True)
        actual = dict.fromkeys(addresses[counts > 1].tolist(), "written by two programs")
        writer = dict(writes.tolist())
        for address, reader in reads[np.isin(reads[:, 0], addresses)].tolist():
            if writer[address] != reader:
                actual.setdefault(address, "written by one program and read by another")
        return actual


@dataclass(frozen=True)
class Stage:
    """A launch on copies of its buffers, each between guards.

    Attributes:
        launch: On the copies.
        tensors: Its tensors by the kernel's parameter.
        copies: Guard, copy, guard, by the address of the storage that was copied.
        before: What lay there.
    """

    launch: Launch
    tensors: Mapping[str, Tensor]
    copies: Mapping[int, Tensor]
    before: Mapping[int, Tensor]


def tensors_of(launch: Launch) -> dict[str, Tensor]:
    """The launch's tensors by the kernel's parameter."""
    names = list(inspect.signature(launch.kernel.fn).parameters)
    actual = {name: value for name, value in zip(names, launch.arguments, strict=False) if hasattr(value, "data_ptr")}
    assert set(launch.writes) <= set(actual), f"{launch.name} writes what it is not given: {launch.writes}"
    return actual


def faults(launch: Launch, seed: int = 0) -> list[str]:
    """What is wrong with a launch, one line for each fault; its own buffers stay as they are."""
    if 0 in launch.grid:
        return []
    return [f"{launch.name}: {fault}" for fault in _faults(launch, Random(seed))]


def _faults(launch: Launch, random: Random) -> Iterator[str]:
    natural = list(range(prod(launch.grid)))
    traffic = Traffic()
    base = _stage(launch, NAN, frozenset())
    try:
        with _watched(traffic):
            _run(base, natural)
    except InterpreterError as error:
        yield f"fails: {error}"
        return
    yield from _strays(base, traffic)
    yield from _overlaps(base, traffic)
    yield from _spills(base, "in the order of their numbers")
    unread = _unread(base, traffic)
    shuffled = [random.sample(natural, len(natural)) for _ in range(2)]
    for pattern, order, how in (
        (FINITE, natural[::-1], "backwards, amid other bytes"),
        (NAN, shuffled[0] + shuffled[1], "twice each, in random orders"),
    ):
        other = _stage(launch, pattern, unread)
        for begin in range(0, len(order), len(natural)):
            _run(other, order[begin : begin + len(natural)])
        yield from _spills(other, how)
        yield from _differences(base, other, how)


def _stage(launch: Launch, pattern: int, scrambled: frozenset[str]) -> Stage:
    """Copy a launch's buffers.

    Args:
        launch: The original.
        pattern: What lies around the copies, and in them where no argument lies.
        scrambled: Parameters whose bytes are inverted.
    """
    originals = tensors_of(launch)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in originals.values()}
    copies = {place: _guarded(storage, pattern) for place, storage in storages.items()}
    moved = {name: _moved(tensor, copies[tensor.untyped_storage().data_ptr()]) for name, tensor in originals.items()}
    for name, tensor in originals.items():
        _bytes(moved[name]).copy_(_bytes(tensor))
    for name in scrambled:
        _bytes(moved[name]).bitwise_not_()
    names = {id(tensor): name for name, tensor in originals.items()}
    arguments = tuple(moved[names[id(one)]] if id(one) in names else one for one in launch.arguments)
    before = {place: copy.clone() for place, copy in copies.items()}
    return Stage(replace(launch, arguments=arguments), moved, copies, before)


def _guarded(storage: torch.UntypedStorage, pattern: int) -> Tensor:
    return torch.full((storage.nbytes() + 2 * GUARD,), pattern, dtype=torch.uint8)


def _moved(tensor: Tensor, copy: Tensor) -> Tensor:
    """The same view, of a copy of its storage."""
    offset = tensor.storage_offset() + GUARD // tensor.element_size()
    return tensor.new_empty(0).set_(copy.untyped_storage(), offset, tensor.shape, tensor.stride())


def _bytes(tensor: Tensor) -> Tensor:
    """A view of a tensor's bytes, one more dimension behind the others; gaps between its elements are left out."""
    size = tensor.element_size()
    strides = (*(stride * size for stride in tensor.stride()), 1)
    whole = tensor.new_empty(0, dtype=torch.uint8)
    return whole.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (*tensor.shape, size), strides)


def _run(stage: Stage, order: Sequence[int]) -> None:
    """Run a launch's programs in an order."""
    builder = interpreter.interpreter_builder
    enter = builder.set_grid_idx
    numbers = iter(order)

    def elsewhere(*_: int) -> None:
        number, (_, rows, layers) = next(numbers), builder.grid_dim
        enter(number // (rows * layers), number // layers % rows, number % layers)

    with patch.object(builder, "set_grid_idx", elsewhere):
        stage.launch.run()


@contextmanager
def _watched(traffic: Traffic) -> Iterator[None]:
    """Note every byte that programs touch."""
    builder = interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store

    def note(touched: list[np.ndarray], pointers: Any, mask: Any) -> None:
        (x, y, z), (_, rows, layers) = builder.grid_idx, builder.grid_dim
        width = np.dtype(interpreter._get_np_dtype(pointers.get_element_ty())).itemsize
        first = np.broadcast_to(pointers.data, mask.data.shape)[mask.data.astype(bool)].astype(np.int64)
        addresses = np.unique(first.reshape(-1, 1) + np.arange(width))
        touched.append(np.stack([addresses, np.full_like(addresses, (x * rows + y) * layers + z)], axis=1))

    def watched_load(pointers: Any, mask: Any, *others: Any) -> Any:
        note(traffic.reads, pointers, mask)
        return load(pointers, mask, *others)

    def watched_store(pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        note(traffic.writes, pointers, mask)
        return store(pointers, value, mask, *others)

    # Plain loads and stores go through the masked ones; no kernel has a reason for atomics.
    refused = patch.multiple(builder, create_atomic_rmw=_refuse, create_atomic_cas=_refuse)
    noted = patch.multiple(builder, create_masked_load=watched_load, create_masked_store=watched_store)
    with refused, noted:
        yield


def _refuse(*_: Any) -> None:
    raise NotImplementedError("an atomic operation: its order may show in the result")


def _addresses(tensors: Iterator[Tensor]) -> np.ndarray:
    """Of every byte of some tensors."""
    places = []
    for tensor in tensors:
        view = _bytes(tensor)
        index = torch.arange(view.untyped_storage().nbytes()).as_strided(
            view.shape, view.stride(), view.storage_offset()
        )
        places.append(index.reshape(-1).numpy() + view.untyped_storage().data_ptr())
    return np.concatenate([np.empty(0, np.int64), *places])


def _strays(stage: Stage, traffic: Traffic) -> Iterator[str]:
    """Bytes touched outside of the arguments, or written outside of those that are declared."""
    writable = _addresses(stage.tensors[name] for name in stage.launch.writes)
    for touched, allowed, what in (
        (traffic.reads, _addresses(iter(stage.tensors.values())), "reads bytes that are in none of its arguments"),
        (traffic.writes, writable, "writes bytes that are in none of those it declares to write"),
    ):
        pairs = traffic.pairs(touched)
        stray = pairs[~np.isin(pairs[:, 0], allowed)]
        if len(stray):
            yield f"program {stray[0, 1]} {what}: {_place(stage, int(stray[0, 0]))}, {len(stray)} in all"


def _overlaps(stage: Stage, traffic: Traffic) -> Iterator[str]:
    """Bytes that one program writes and another touches."""
    races = traffic.races()
    for what in sorted(set(races.values())):
        places = [address for address, why in races.items() if why == what]
        yield f"{_place(stage, min(places))} is {what}, {len(places)} bytes in all"


def _unread(stage: Stage, traffic: Traffic) -> frozenset[str]:
    """The parameters whose old bytes nobody reads."""
    read = traffic.pairs(traffic.reads)[:, 0]
    return frozenset(
        name for name in stage.launch.writes if not np.isin(_addresses(iter([stage.tensors[name]])), read).any()
    )


def _place(stage: Stage, address: int) -> str:
    """An address as a byte of a parameter, or of the surroundings of the nearest."""
    near = min(stage.tensors.items(), key=lambda item: abs(address - item[1].data_ptr()))
    return f"byte {address - near[1].data_ptr()} of {near[0]}"


def _spills(stage: Stage, how: str) -> Iterator[str]:
    """Bytes that changed and must not."""
    for place, copy in stage.copies.items():
        changed = copy != stage.before[place]
        base = copy.untyped_storage().data_ptr()
        for name in stage.launch.writes:
            tensor = stage.tensors[name]
            if tensor.untyped_storage().data_ptr() == base:
                view = _bytes(tensor)
                changed.as_strided(view.shape, view.stride(), view.storage_offset()).zero_()
        if bool(changed.any()):
            where = _place(stage, base + int(changed.nonzero()[0]))
            yield f"run {how}, changes {where}, {int(changed.sum())} bytes in all"


def _differences(base: Stage, other: Stage, how: str) -> Iterator[str]:
    """Bytes that came out differently; what neither wrote may differ."""
    for name in base.launch.writes:
        place = next(key for key, copy in base.copies.items() if _within(base.tensors[name], copy))
        touched = torch.zeros_like(_bytes(base.tensors[name]), dtype=torch.bool)
        for stage in (base, other):
            view = _bytes(stage.tensors[name])
            touched |= view != stage.before[place].as_strided(view.shape, view.stride(), view.storage_offset())
        wrong = touched & (_bytes(base.tensors[name]) != _bytes(other.tensors[name]))
        if bool(wrong.any()):
            yield f"run {how}, {name} comes out differently in {int(wrong.sum())} bytes"


def _within(tensor: Tensor, copy: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == copy.untyped_storage().data_ptr()


@dataclass
class Findings:
    """What was seen of the launches of some operations.

    Attributes:
        kernels: Which were launched with at least one program.
        faults: What is wrong with them.
    """

    kernels: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


@contextmanager
def examined() -> Iterator[Findings]:
    """Examine every launch before it runs."""
    findings = Findings()
    run = Launch.run

    def examine(launch: Launch) -> None:
        if 0 not in launch.grid:
            findings.kernels.add(launch.name)
        # The launches on copies are not examined again.
        with patch.object(Launch, "run", run):
            findings.faults += faults(launch, seed=len(findings.kernels))
        run(launch)

    with patch.object(Launch, "run", examine):
        yield findings
