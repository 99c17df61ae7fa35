from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_sglang.encode import checkpoint


def files(folder: Path, **contents: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def index(**names: str) -> str:
    return json.dumps({"weight_map": {name.replace("__", "."): file for name, file in names.items()}})


def test_the_same_checkpoint_has_the_same_digest_wherever_it_lies(tmp_path: Path) -> None:
    listed = index(vision__a="1.safetensors")
    one, two = (
        files(tmp_path / name, config__json="{}", model__safetensors__index__json=listed) for name in ("one", "two")
    )
    assert checkpoint.digest(str(one)) == checkpoint.digest(str(two))
    assert 0 <= checkpoint.digest(str(one)) < 2**63


@pytest.mark.parametrize("changed", ["config__json", "model__safetensors__index__json"])
def test_another_configuration_or_list_of_tensors_is_another_digest(tmp_path: Path, changed: str) -> None:
    contents = {"config__json": "{}", "model__safetensors__index__json": index(vision__a="1.safetensors")}
    before = checkpoint.digest(str(files(tmp_path, **contents)))
    assert checkpoint.digest(str(files(tmp_path, **{**contents, changed: contents[changed] + " "}))) != before


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_of_a_single_file_the_header_counts(header: bytes, values: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "model.safetensors"
        file.write_bytes(len(header).to_bytes(8, "little") + header + values)
        before = checkpoint.digest(name)
        file.write_bytes(len(header).to_bytes(8, "little") + header + b"other" + values)
        assert checkpoint.digest(name) == before
        file.write_bytes((len(header) + 1).to_bytes(8, "little") + header + b" " + values)
        assert checkpoint.digest(name) != before


def test_a_name_in_a_hub_counts_by_itself() -> None:
    assert checkpoint.digest("deepseek-ai/DeepSeek-V4.1-Flash") != checkpoint.digest("deepseek-ai/Other")


def test_only_the_encoders_files_are_opened(tmp_path: Path) -> None:
    listed = index(
        vision__blocks__0="3.safetensors", aligner__w1="1.safetensors", image_start="3.safetensors",
        layers__0__attn="2.safetensors", embed__weight="4.safetensors",
    )  # fmt: skip
    folder = files(tmp_path, model__safetensors__index__json=listed)
    assert checkpoint.shards(str(folder)) == ["1.safetensors", "3.safetensors"]
    assert checkpoint.shards(str(tmp_path / "absent")) == []
