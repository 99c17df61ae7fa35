"""Runs `epd` in this process, and writes the documents it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epd_operator.cli.main import main
from tests.support.cli import Answer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cli import Epd, Write

GOOD = """\
apiVersion: serving.epd.dev/v1alpha1
kind: DeepSeekV41Deployment
metadata:
  name: demo
  namespace: llm
spec:
  engine: {type: Reference, version: "0.1"}
  roles:
    encode: {}
    prefill: {}
    decode: {}
"""
BAD = """\
apiVersion: serving.epd.dev/v1alpha1
kind: DeepSeekV41Deployment
metadata:
  name: bad
spec:
  model: {path: /model}
  engine:
    type: SGLang
    version: "0.5.23"
    platform: cuda-sm90
    image: registry.example/sglang:v0.5.23
  roles:
    prefill:
      replicas: two
      args:
        tp-size: 4
        chunkd-prefill-size: 8192
    decode:
      args: {tp-size: 4, port: 1}
"""


@pytest.fixture
def epd(capsys: pytest.CaptureFixture[str]) -> Epd:
    def run(*words: str) -> Answer:
        capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return run


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def file(text: str | bytes = GOOD, name: str = "deploy.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return name

    return file


@pytest.fixture(scope="session")
def good() -> str:
    return GOOD


@pytest.fixture(scope="session")
def bad() -> str:
    return BAD
