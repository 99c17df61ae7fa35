"""Names for the registry, and the pause image."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import program
from tools.cluster import configuration, pause, registry
from tools.program import Unfit

if TYPE_CHECKING:
    from pathlib import Path

PART = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,4})?", fullmatch=True)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("localhost/epd-worker:dev", "10.244.0.1:5000/epd-worker:dev"),
        ("epd-worker", "10.244.0.1:5000/epd-worker:latest"),
        ("ghcr.io/team/epd:1.2", "10.244.0.1:5000/team/epd:1.2"),
        ("team/epd", "10.244.0.1:5000/team/epd:latest"),
        ("host:5000/epd", "10.244.0.1:5000/epd:latest"),
        ("10.244.0.1:5000/epd:x", "10.244.0.1:5000/epd:x"),
    ],
)
def test_the_host_is_replaced_and_the_tag_completed(image: str, expected: str) -> None:
    assert registry.reference(image) == expected


@given(path=st.lists(PART, min_size=1, max_size=3), tag=PART)
def test_naming_twice_changes_nothing(path: list[str], tag: str) -> None:
    once = registry.reference("localhost/" + "/".join(path) + f":{tag}")
    assert registry.reference(once) == once


@pytest.mark.parametrize("image", ["", "localhost/", ":tag", "app@sha256:" + "0" * 64])
def test_what_is_no_name_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="image is"):
        registry.reference(image)


def test_a_small_registry_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(program, "path", lambda name: pytest.fail(f"{name} must not be run"))
    layer = tmp_path / "epd" / "registry" / "layer"
    layer.parent.mkdir(parents=True)
    layer.write_bytes(b"x" * 1000)
    assert not registry.prune(limit_bytes=1000)


def test_a_registry_over_the_limit_is_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    collector = "/bin/false"
    monkeypatch.setattr(program, "path", lambda name: collector if name == "docker-registry" else name)
    monkeypatch.setattr(configuration, "REGISTRY_FILE", tmp_path / "registry.yaml")
    configuration.REGISTRY_FILE.write_text("{}")
    layer = tmp_path / "epd" / "registry" / "layer"
    layer.parent.mkdir(parents=True)
    layer.write_bytes(b"x" * 1001)
    with pytest.raises(Unfit, match="garbage collection failed"):
        registry.prune(limit_bytes=1000)
    collector = "/bin/true"
    assert registry.prune(limit_bytes=1000)


def test_the_pause_image_is_one_layer_with_one_program() -> None:
    data = pause.archive(b"\x7fELF...", "arm64")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    manifest = json.loads(files["manifest.json"])[0]
    config = json.loads(files[manifest["Config"]])
    layer = files[manifest["Layers"][0]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert config["architecture"] == "arm64"
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        program = tar.getmember("busybox")
        assert program.mode & 0o111 == 0o111
        assert f"/{program.name}" == config["config"]["Entrypoint"][0]


def test_the_pause_image_is_the_same_every_time() -> None:
    assert pause.archive(b"x", "amd64") == pause.archive(b"x", "amd64")
