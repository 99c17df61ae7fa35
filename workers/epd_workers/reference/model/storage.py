"""How a checkpoint stores each parameter: names, shapes and dtypes of the released files.

The tricky idea: our modules keep a layer's routed experts in one tensor, the released files one tensor an expert. Both
directions go through one list of `Slot`s, read off the module tree itself on the meta device.

Dense matrices are E4M3 with a UE8M0 scale per 32 x 32, routed experts MXFP4 (two E2M1 a byte, a UE8M0 scale per 32),
Engram tables E4M3 with a scale per 32 of a row; selection biases, sinks and hyper-connections are float32, all else
bfloat16. Source: the tensor headers of DeepSeek-V4.1-Flash, revision dba1be0a (96,085 tensors, 510,286,023,000 bytes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import torch

from epd_kernels.formats import reference as formats
from epd_workers.reference.model.transformer import Transformer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from epd_workers.reference.model.config import Config

Encoding = Literal["blocks", "mxfp4", "rows", "float32", "bfloat16"]
Stored = tuple[torch.dtype, tuple[int, ...]]

_EXPERTS: Final = re.compile(r"^(.*\.ffn\.experts)\.(w[123])$")
_SITE: Final = re.compile(r"\.(hc_(?:attn|ffn))\.(fn|base|scale)$")
_RULES: Final[tuple[tuple[re.Pattern[str], Encoding], ...]] = (
    (re.compile(r"\.ffn\.experts\."), "mxfp4"),
    (re.compile(r"\.engram\.embed\.weight$"), "rows"),
    (re.compile(r"\.attn\.(wq_a|wq_b|wkv|wo_a|wo_b|indexer\.wq_b)\.weight$"), "blocks"),
    (re.compile(r"\.(ffn\.shared_experts\.w[123]|engram\.wkv|main_proj)\.weight$"), "blocks"),
    (re.compile(r"\.(attn_sink|gate\.bias|gate\.bias_vl|hc_(attn|ffn)_(fn|base|scale))$"), "float32"),
)
_BLOCK: Final = formats.WEIGHT_BLOCK


@dataclass(frozen=True)
class Slot:
    """One stored parameter.

    Attributes:
        name: The released name of its values; scales have `.scale` for `.weight`.
        parameter: The module's name for it.
        expert: Which part of a stacked parameter it is; None for the whole.
        shape: Its values' shape.
        encoding: How they are stored.
    """

    name: str
    parameter: str
    expert: int | None
    shape: tuple[int, ...]
    encoding: Encoding

    @property
    def scale(self) -> str:
        """The name of its scales."""
        return self.name.removesuffix("weight") + "scale"

    def stored(self) -> dict[str, Stored]:
        """Names, dtypes and shapes of its tensors in the file."""
        if self.encoding in {"float32", "bfloat16"}:
            return {self.name: (torch.float32 if self.encoding == "float32" else torch.bfloat16, self.shape)}
        *lead, width = self.shape
        scaled = -(-width // _BLOCK)
        if self.encoding == "mxfp4":
            codes: Stored = (torch.int8, (*lead, width // 2))
        else:
            codes = (torch.float8_e4m3fn, self.shape)
        rows = [-(-size // _BLOCK) for size in lead] if self.encoding == "blocks" else lead
        return {self.name: codes, self.scale: (torch.float8_e8m0fnu, (*rows, scaled))}

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """Its tensors in the file for these values, [*shape] float."""
        values = values.float()
        if self.encoding == "float32":
            return {self.name: values.contiguous()}
        if self.encoding == "bfloat16":
            return {self.name: values.to(torch.bfloat16).contiguous()}
        pack = {"blocks": formats.pack_fp8_blocks, "mxfp4": formats.pack_mxfp4, "rows": formats.pack_fp8_rows}
        packed = dict(zip((self.name, self.scale), pack[self.encoding](values), strict=True))
        return {name: packed[name].view(dtype) for name, (dtype, _) in self.stored().items()}

    def decode(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Its values [*shape] from tensors of the file; the rounding to `dtype` is the only one."""
        if self.encoding in {"float32", "bfloat16"}:
            return tensors[self.name].to(dtype, copy=True)  # what was read may be a view of the file
        unpack = {"blocks": formats.unpack_fp8_blocks, "mxfp4": formats.unpack_mxfp4, "rows": formats.unpack_fp8_rows}
        codes, scale = (tensors[name].view(torch.uint8) for name in (self.name, self.scale))
        return unpack[self.encoding](codes, scale, dtype)


@lru_cache(maxsize=4)
def slots(config: Config) -> tuple[Slot, ...]:
    """Every stored parameter of a model of these sizes."""
    with torch.device("meta"):
        model = Transformer(config)
    result: list[Slot] = []
    for parameter, value in model.named_parameters():
        stack = _EXPERTS.match(parameter)
        if stack is None:
            name = _SITE.sub(r".\1_\2", parameter)
            result.append(Slot(name, parameter, None, tuple(value.shape), _encoding(name)))
            continue
        for expert in range(len(value)):
            name = f"{stack[1]}.{expert}.{stack[2]}.weight"
            result.append(Slot(name, parameter, expert, tuple(value.shape[1:]), _encoding(name)))
    return tuple(result)


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The values' shape of every parameter, by released name; scales are not listed."""
    return {slot.name: slot.shape for slot in slots(config)}


def stored(config: Config) -> dict[str, Stored]:
    """Dtype and shape of every tensor in the file, by released name."""
    return {name: kind for slot in slots(config) for name, kind in slot.stored().items()}


def encode(config: Config, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The file's tensors for a module's parameters."""
    made: dict[str, Tensor] = {}
    for slot in slots(config):
        value = parameters[slot.parameter].detach()
        made.update(slot.encode(value if slot.expert is None else value[slot.expert]))
    return made


def decode(config: Config, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """A module's parameters, as `dtype`, from the file's tensors."""
    parts: dict[str, list[Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for slot in slots(config):
        value = slot.decode(tensors, dtype)
        if slot.expert is None:
            whole[slot.parameter] = value
        else:
            parts.setdefault(slot.parameter, []).append(value)
    return whole | {name: torch.stack(values) for name, values in parts.items()}


def _encoding(name: str) -> Encoding:
    return next((encoding for pattern, encoding in _RULES if pattern.search(name)), "bfloat16")
