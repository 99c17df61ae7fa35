from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from epd_workers.registrar.key import KeyFileError, draw, read
from epd_workers.registrar.main import main

if TYPE_CHECKING:
    from pathlib import Path


def test_a_key_is_drawn_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert draw(path)
    first = path.read_text()
    assert len(first) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o440
    assert not draw(path)
    assert path.read_text() == first
    assert list(tmp_path.iterdir()) == [path]


def test_two_keys_differ(tmp_path: Path) -> None:
    draw(tmp_path / "a")
    draw(tmp_path / "b")
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


def test_a_left_over_of_a_crash_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".key.partial").write_text("half")
    assert draw(tmp_path / "key")
    assert read(tmp_path / "key", "control") != "half"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"nowhere.*writable volume"):
        draw(tmp_path / "nowhere" / "key")


@pytest.mark.parametrize("content", ["", " \n", "two words", "two\nlines"])
def test_an_unusable_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(KeyFileError, match="client key must be one line"):
        read(path, "client")


def test_white_space_around_a_key_is_not_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("abc\n")
    assert read(tmp_path / "key", "client") == "abc"


def test_the_command_draws(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(main, ["draw-key", str(tmp_path / "key")]).result() == 0
    assert read(tmp_path / "key", "control")
