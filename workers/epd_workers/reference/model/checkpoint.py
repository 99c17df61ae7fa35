"""Checkpoint directories: `config.json` and `model.safetensors` in the released layout.

What is wrong with a directory is said all at once, in one message that names file, tensor, what was expected and what
was found. Names and formats are `storage`'s business.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialise

from epd_workers.reference.model.config import BadConfig, Config
from epd_workers.reference.model.engram_hash import table_rows
from epd_workers.reference.model.storage import decode, encode, stored
from epd_workers.reference.model.transformer import Transformer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from epd_workers.reference.model.storage import Stored

CONFIG: Final = "config.json"
TENSORS: Final = "model.safetensors"
_SHOWN: Final = 8
_CAN_FAIL: Final = frozenset({torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bfloat16, torch.float16, torch.float32,
                              torch.float64})  # fmt: skip
"""Dtypes with values that are not finite; torch cannot even read some others, which no checkpoint may have."""


class BadCheckpoint(ValueError):
    """A directory that no model can be loaded from; `faults` has one message per fault."""

    def __init__(self, directory: Path, faults: list[str]) -> None:
        super().__init__(f"checkpoint {directory}: " + "; ".join(faults))
        self.faults = tuple(faults)


def save(model: Transformer, config: Config, directory: Path) -> None:
    """Write a directory; each file is replaced as a whole.

    Raises:
        BadCheckpoint: A parameter is not finite: `load` would refuse it.
    """
    tensors = encode(config, dict(model.named_parameters()))
    faults = _not_finite(tensors)
    if faults:
        raise BadCheckpoint(directory, faults)
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config.to_json(), indent=2) + "\n"
    _replace(directory / CONFIG, text.encode())
    _replace(directory / TENSORS, serialise(tensors, metadata={"format": "pt"}))


def load(directory: Path, dtype: torch.dtype) -> tuple[Config, Transformer]:
    """Read a directory.

    Args:
        directory: Where its two files are.
        dtype: Of the parameters: every stored value is exact in float32 and float64.

    Raises:
        BadCheckpoint: Lists everything that is wrong.
    """
    faults: list[str] = []
    config = _config(directory / CONFIG, faults)
    tensors = _tensors(directory / TENSORS, faults)
    if config is not None and tensors is not None:
        try:
            faults += _mismatches(stored(config), tensors)
        except RuntimeError as error:  # no file holds tensors that even the meta device cannot count
            faults.append(f"{CONFIG} calls for tensors that are too large: {error}")
    if tensors is not None:
        faults += _not_finite(tensors)
    if faults or config is None or tensors is None:
        raise BadCheckpoint(directory, faults)
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(decode(config, tensors, dtype), assign=True)
    return config, model


def quantised(model: Transformer) -> dict[str, Tensor]:
    """The parameters that a load of a save would give, in the dtype of the model's embedding."""
    tensors = encode(model.config, dict(model.named_parameters()))
    return decode(model.config, tensors, model.embed.weight.dtype)


def digest(directory: Path) -> str:
    """SHA-256 over the configuration's values and the tensors: equal for engines that compute the same KV.

    Raises:
        BadCheckpoint: A file cannot be read.
    """
    faults: list[str] = []
    config = _config(directory / CONFIG, faults)
    tensors = _bytes(directory / TENSORS, faults)
    if config is None or tensors is None:
        raise BadCheckpoint(directory, faults)
    total = hashlib.sha256(json.dumps(config.to_json(), sort_keys=True, separators=(",", ":")).encode())
    total.update(hashlib.sha256(tensors).digest())
    return total.hexdigest()


def _config(path: Path, faults: list[str]) -> Config | None:
    raw = _bytes(path, faults)
    if raw is None:
        return None
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        faults.append(f"{path.name} is not JSON: {error}; copy it again")
        return None
    if not isinstance(data, dict):
        faults.append(f"{path.name} is {type(data).__name__}: must be an object")
        return None
    try:
        config = Config.from_json(data)
    except BadConfig as error:
        faults += [f"{path.name}: {fault}" for fault in error.faults]
        return None
    rows = table_rows(config.text)
    if tuple(config.text.engram_num_embeddings) != rows:
        faults.append(
            f"{path.name}: text_config.engram_num_embeddings is {list(config.text.engram_num_embeddings)}: must be "
            f"the prime sums {list(rows)}"
        )
        return None
    return config


def _tensors(path: Path, faults: list[str]) -> dict[str, Tensor] | None:
    try:
        return load_file(path)
    except FileNotFoundError:
        faults.append(f"{path.name} is missing")
    except OSError as error:
        faults.append(f"{path.name} cannot be read: {error.strerror or error}")
    except SafetensorError as error:
        faults.append(f"{path.name} ({path.stat().st_size} bytes) is truncated or corrupt: {error}; copy it again")
    return None


def _bytes(path: Path, faults: list[str]) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        faults.append(f"{path.name} is missing")
    except OSError as error:
        faults.append(f"{path.name} cannot be read: {error.strerror}")
    return None


def _mismatches(expected: Mapping[str, Stored], tensors: Mapping[str, Tensor]) -> list[str]:
    faults = []
    missing = [name for name in expected if name not in tensors]
    surplus = [name for name in tensors if name not in expected]
    if missing:
        faults.append(f"{TENSORS} lacks {_some(missing)}")
    if surplus:
        faults.append(f"{TENSORS} has {_some(surplus)}, which {CONFIG} does not call for")
    for name, (dtype, shape) in expected.items():
        if name not in tensors:
            continue
        tensor = tensors[name]
        if tensor.dtype != dtype:
            faults.append(f"{TENSORS}: {name} is {_word(tensor.dtype)}: must be {_word(dtype)}")
        if tuple(tensor.shape) != shape:
            faults.append(f"{TENSORS}: {name} has shape {list(tensor.shape)}: must be {list(shape)}")
    return faults


def _not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    faults = []
    for name, value in tensors.items():
        if value.dtype in _CAN_FAIL:
            bad = value.numel() - int(value.float().isfinite().sum())
            if bad:
                faults.append(f"{TENSORS}: {name} has {bad} of {value.numel()} values that are not finite")
    return faults


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)
