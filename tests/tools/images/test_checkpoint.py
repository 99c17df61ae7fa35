from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from images.checkpoint import check
from tests.support.reference import checkpoints

if TYPE_CHECKING:
    from pathlib import Path


def test_a_checkpoint_that_pods_can_serve(tmp_path: Path) -> None:
    assert check(["--model-path", str(checkpoints.write(tmp_path))]).startswith("checkpoint: 4 layers, 512 ids, ")


def test_one_that_they_cannot_stops_the_build(tmp_path: Path) -> None:
    checkpoints.write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SystemExit, match=r"model\.safetensors is missing"):
        check(["--model-path", str(tmp_path)])
