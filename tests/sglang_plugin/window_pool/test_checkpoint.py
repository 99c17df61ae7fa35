from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epd_sglang.window_pool.checkpoint import BLOCK, BLOCKS, digest

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 3 * BLOCK * BLOCKS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(SIZE))
    (tmp_path / "README.md").write_text("none of the model's")
    return tmp_path


def changed(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("place", [0, SIZE - 1, SIZE - BLOCK])
def test_weights_that_differ_in_a_sample_have_another_digest(folder: Path, place: int) -> None:
    before = digest(folder)
    changed(folder / "model.safetensors", place)
    assert digest(folder) != before


def test_so_do_another_configuration_another_name_and_another_size(folder: Path) -> None:
    seen = [digest(folder)]
    (folder / "config.json").write_text("{ }")
    seen.append(digest(folder))
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    seen.append(digest(folder))
    (folder / "weights.safetensors").write_bytes(bytes(SIZE + 1))
    seen.append(digest(folder))
    assert len(set(seen)) == 4


def test_other_files_do_not_count_and_small_weights_are_read_whole(folder: Path) -> None:
    small = folder / "model.safetensors"
    small.write_bytes(bytes(100))
    before = digest(folder)
    (folder / "README.md").write_text("changed")
    assert digest(folder) == before
    changed(small, 50)
    assert digest(folder) != before


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        digest(tmp_path)
