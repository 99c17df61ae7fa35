from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from epd_workers.reference.model import checkpoint
from epd_workers.reference.model.checkpoint import BadCheckpoint
from epd_workers.reference.model.config import SHIPPED, Config
from epd_workers.reference.model.engram_hash import table_rows
from epd_workers.reference.model.storage import slots
from epd_workers.reference.model.transformer import Transformer, initialise

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = Config(
    text=replace(
        SHIPPED.text,
        vocab_size=70,
        hidden_size=64,
        hc_mult=4,
        q_lora_rank=48,  # not a multiple of the scales' 32
        n_routed_experts=3,
        moe_intermediate_size=32,
        engram_vocab_size=40,
        engram_num_embeddings=table_rows(replace(SHIPPED.text, engram_vocab_size=40)),
        engram_pad_token_id=2,
        engram_compressed_vocab_size=60,
        dspark_noise_token_id=3,
        dspark_n_routed_experts=2,
    ),
    vision=SHIPPED.vision,
    image_token_id=69,
)


def model(dtype: torch.dtype = torch.float32) -> Transformer:
    return initialise(Transformer(SMALL).to(dtype), 7)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    checkpoint.save(model(), SMALL, directory)
    return directory


@pytest.fixture
def directory(original: Path, tmp_path: Path) -> Path:
    for file in original.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_round_trip_gives_the_quantised_parameters(original: Path) -> None:
    config, loaded = checkpoint.load(original, torch.float32)
    assert config == SMALL
    wanted = checkpoint.quantised(model())
    actual = dict(loaded.named_parameters())
    assert actual.keys() == wanted.keys() == dict(model().named_parameters()).keys()
    for name, value in actual.items():
        assert torch.equal(value, wanted[name]), name
        assert value.device.type == "cpu"


def test_quantising_twice_changes_no_value(original: Path) -> None:
    _, loaded = checkpoint.load(original, torch.float32)
    requantised = checkpoint.quantised(loaded)
    assert all(torch.equal(value, requantised[name]) for name, value in loaded.named_parameters())


def test_saving_twice_writes_the_same_bytes(original: Path, tmp_path: Path) -> None:
    checkpoint.save(model(), SMALL, tmp_path / "again")
    assert checkpoint.digest(tmp_path / "again") == checkpoint.digest(original)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (original / "model.safetensors").read_bytes()
    assert sorted(file.name for file in (tmp_path / "again").iterdir()) == ["config.json", "model.safetensors"]


def test_float64_holds_the_same_values(original: Path) -> None:
    narrow, wide = (checkpoint.load(original, dtype)[1] for dtype in (torch.float32, torch.float64))
    for (name, a), (_, b) in zip(narrow.named_parameters(), wide.named_parameters(), strict=True):
        assert b.dtype == torch.float64
        assert torch.equal(a.double(), b), name


def test_quantising_stays_close_to_the_weights() -> None:
    plain, rounded = dict(model().named_parameters()), checkpoint.quantised(model())
    limits = {"blocks": 2**-4, "rows": 2**-4, "mxfp4": 0.25, "bfloat16": 2**-8, "float32": 0.0}
    for slot in slots(SMALL):
        before, after = (
            values[slot.parameter] if slot.expert is None else values[slot.parameter][slot.expert]
            for values in (plain, rounded)
        )
        assert (before - after).abs().max() <= limits[slot.encoding] * before.abs().max(), slot.name


def test_the_config_is_written_with_the_released_keys(original: Path) -> None:
    data = json.loads((original / "config.json").read_text())
    assert data["architectures"] == ["DeepseekV41ForCausalLM"]
    assert data["quantization_config"]["weight_block_size"] == [32, 32]
    assert data["text_config"]["engram_num_embeddings"] == list(SMALL.text.engram_num_embeddings)


def test_the_digest_follows_values_not_spaces(directory: Path) -> None:
    before = checkpoint.digest(directory)
    data = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(data, indent=7))
    assert checkpoint.digest(directory) == before
    data["text_config"]["index_topk"] -= 1
    (directory / "config.json").write_text(json.dumps(data))
    assert checkpoint.digest(directory) != before


def test_the_digest_sees_one_changed_weight(directory: Path) -> None:
    before = checkpoint.digest(directory)
    change_tensors(directory, lambda tensors: tensors["norm.weight"].mul_(2))
    assert checkpoint.digest(directory) != before


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors = {name: value.clone() for name, value in tensors.items()}
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def change_config(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((directory / "config.json").read_text())
    change(data)
    (directory / "config.json").write_text(json.dumps(data))


def shape_of(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return change


def dtype_of(name: str, dtype: torch.dtype) -> Callable[[dict[str, torch.Tensor]], object]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name].to(dtype)

    return change


def nan_in(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[name].view(-1)[:2].fill_(float("nan"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("norm.weight"), "model.safetensors lacks norm.weight"),
        (lambda t: t.pop("layers.0.attn.wkv.scale"), "model.safetensors lacks layers.0.attn.wkv.scale"),
        (
            lambda t: t.update({"layers.0.attn.extra": torch.zeros(1)}),
            "model.safetensors has layers.0.attn.extra, which config.json does not call for",
        ),
        (shape_of("head.weight"), r"head.weight has shape \[69, 64\]: must be \[70, 64\]"),
        (
            shape_of("layers.3.ffn.experts.1.w2.scale"),
            r"layers.3.ffn.experts.1.w2.scale has shape \[63, 1\]: must be \[64, 1\]",
        ),
        (dtype_of("embed.weight", torch.float32), "embed.weight is float32: must be bfloat16"),
        (dtype_of("layers.0.attn.attn_sink", torch.bfloat16), "attn_sink is bfloat16: must be float32"),
        (nan_in("layers.2.hc_attn_fn"), "layers.2.hc_attn_fn has 2 of 6144 values that are not finite"),
        (
            lambda t: t["layers.0.attn.wkv.weight"].view(torch.uint8)[0, 0].fill_(0x7F),
            "layers.0.attn.wkv.weight has 1 of 4096 values that are not finite",
        ),
        (
            lambda t: t["layers.1.engram.embed.scale"].view(torch.uint8)[0, 0].fill_(0xFF),
            "layers.1.engram.embed.scale has 1 of .* values that are not finite",
        ),
    ],
)
def test_one_bad_tensor_gives_one_message(
    directory: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    change_tensors(directory, change)
    with pytest.raises(BadCheckpoint, match=message) as caught:
        checkpoint.load(directory, torch.float32)
    assert len(caught.value.faults) == 1
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_tensors(directory: Path, keep: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadCheckpoint, match=r"model.safetensors \(\d+ bytes\) is truncated or corrupt") as caught:
        checkpoint.load(directory, torch.float32)
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize("content", [b"\xff" * 4096, b"not tensors at all", b"\x02\0\0\0\0\0\0\0[]", b"\0" * 64])
def test_other_content_for_tensors(directory: Path, content: bytes) -> None:
    (directory / "model.safetensors").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors") as caught:
        checkpoint.load(directory, torch.float32)
    assert caught.value.faults


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "config.json is not JSON"),
        (b"\xff\xfe\x00", "config.json is not JSON"),
        (b"[" * 100_000, "config.json is not JSON"),
        (b"[1]", "config.json is list: must be an object"),
    ],
)
def test_other_content_for_the_config(directory: Path, content: bytes, message: str) -> None:
    (directory / "config.json").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=message):
        checkpoint.load(directory, torch.float32)
    with pytest.raises(BadCheckpoint, match=message):
        checkpoint.digest(directory)


def test_wrong_keys_and_values_are_named(directory: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        del data["text_config"]["head_dim"]
        data["text_config"]["o_groups"] = "two"

    change_config(directory, change)
    with pytest.raises(BadCheckpoint) as caught:
        checkpoint.load(directory, torch.float32)
    assert any("config.json: text_config.head_dim is missing" in fault for fault in caught.value.faults)
    assert any("config.json: text_config.o_groups is 'two'" in fault for fault in caught.value.faults)


def test_table_rows_must_be_the_prime_sums(directory: Path) -> None:
    change_config(directory, lambda data: data["text_config"].update(engram_num_embeddings=[5]))
    with pytest.raises(BadCheckpoint, match=r"engram_num_embeddings is \[5\]: must be the prime sums"):
        checkpoint.load(directory, torch.float32)


def test_a_config_of_another_size_names_the_tensors(directory: Path) -> None:
    change_config(directory, lambda data: data["text_config"].update(hidden_size=96))
    with pytest.raises(BadCheckpoint, match=r"norm.weight has shape \[64\]: must be \[96\]"):
        checkpoint.load(directory, torch.float32)


def test_all_faults_of_both_files_come_at_once(directory: Path) -> None:
    (directory / "config.json").unlink()
    change_tensors(directory, nan_in("embed.weight"))
    with pytest.raises(BadCheckpoint) as caught:
        checkpoint.load(directory, torch.float32)
    assert caught.value.faults[0] == "config.json is missing"
    assert "embed.weight has 2 of" in caught.value.faults[1]


def test_an_empty_directory_lacks_both_files(tmp_path: Path) -> None:
    for read in (lambda: checkpoint.load(tmp_path, torch.float32), lambda: checkpoint.digest(tmp_path)):
        with pytest.raises(BadCheckpoint) as caught:
            read()
        assert caught.value.faults == ("config.json is missing", "model.safetensors is missing")


def test_a_directory_in_a_files_place_is_said(directory: Path) -> None:
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()
    with pytest.raises(BadCheckpoint, match=r"config\.json cannot be read: Is a directory"):
        checkpoint.load(directory, torch.float32)


def test_nothing_that_cannot_be_loaded_is_saved(tmp_path: Path) -> None:
    broken = model()
    with torch.no_grad():
        broken.norm.weight[0] = float("inf")
    with pytest.raises(BadCheckpoint, match=r"norm\.weight has 1 of 64 values that are not finite"):
        checkpoint.save(broken, SMALL, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_loaded_model_is_fit_for_training(original: Path) -> None:
    _, loaded = checkpoint.load(original, torch.float32)
    fixed = {name for name, parameter in loaded.named_parameters() if not parameter.requires_grad}
    assert fixed == {name for name, _ in loaded.named_parameters() if ".gate.bias" in name}


def test_a_dtype_that_torch_cannot_read_is_a_fault(directory: Path) -> None:
    path = directory / "model.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8:end]), content[end:]
    header["surplus"] = {"dtype": "F4", "shape": [4], "data_offsets": [len(body), len(body) + 2]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body + b"\x00\x00")
    with pytest.raises(BadCheckpoint, match=r"has surplus, which config\.json does not call for"):
        checkpoint.load(directory, torch.float32)


def test_sizes_beyond_all_files_are_a_fault(directory: Path) -> None:
    change_config(directory, lambda data: data["text_config"].update(hidden_size=10**9, q_lora_rank=2**31 - 1))
    with pytest.raises(BadCheckpoint, match=r"config\.json calls for tensors that are too large"):
        checkpoint.load(directory, torch.float32)
