"""The real engine with our plugin: where it is, and a server of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import tokenizers

from epd_workers.reference.model import checkpoint, engram_hash
from epd_workers.reference.model.config import SHIPPED, Config
from epd_workers.reference.model.transformer import Transformer, initialise
from epd_workers.reference.training import vocabulary
from tests.support.polling import until
from tests.support.ports import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHAPES: Final[dict[str, Any]] = {
    "num_attention_heads": 2, "head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_topk": 512,
    "candidate_topk_blocks": 72, "hc_mult": 4,
}  # fmt: skip
"""What the engine's back end insists on. Source: SGLang 0.5.23, srt/layers/attention/deepseek_v4_backend.py."""
MARKERS: Final = (
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜deepseek_image｜>", "<｜System｜>", "<｜User｜>",
    "<｜Assistant｜>", "<｜▁pad▁｜>", "<noise>", "<think>", "</think>",
)  # fmt: skip
"""What DeepSeek's own chat encoding, which the engine starts with, wants to find in a tokenizer, from id 256 on."""
READY_SECONDS: Final = 240.0


def environment(plugins: str, *folders: Path) -> dict[str, str]:
    """The environment of a process of the engine.

    Args:
        plugins: Which plugins it loads, as SGLANG_PLUGINS says it; empty for none of ours.
        folders: What it imports besides its own.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SGLANG_", "EPD_"))}
    return {
        **inherited,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONWARNINGS": "ignore",
        "SGLANG_PLUGINS": plugins or "none",
    }


def random_checkpoint(folder: Path, seed: int = 1) -> Path:
    """Write a checkpoint of random weights in the released format and in the engine's shapes."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = range(tokenizer.get_vocab_size())
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
    compressed = engram_hash.token_map(texts, [str(tokenizer.id_to_token(i)) for i in ids])[1]
    text = dataclasses.replace(SHIPPED.text, **SHAPES, engram_compressed_vocab_size=compressed)
    text = dataclasses.replace(text, engram_num_embeddings=engram_hash.table_rows(text))
    config = Config(text, SHIPPED.vision, SHIPPED.image_token_id)
    checkpoint.save(initialise(Transformer(config).float(), seed), config, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def _write_tokenizer(path: Path) -> None:
    """The trained checkpoint's tokenizer with DeepSeek's markers in place of its own."""
    vocabulary.write(path)
    document = json.loads(path.read_text())
    names = {number: name for name, number in document["model"]["vocab"].items()}
    document["added_tokens"] = []
    for number, marker in enumerate(MARKERS, 256):
        names[number] = marker
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        document["added_tokens"].append({"id": number, "content": marker, "special": True, **flags})
    document["model"]["vocab"] = {name: number for number, name in names.items()}
    path.write_text(json.dumps(document, ensure_ascii=False))


@dataclass(frozen=True)
class Server:
    """A running server of the engine, all its processes in one group.

    Attributes:
        port: Of its HTTP surface.
        log: Its output.
        process: The one that was started.
        flags: Those that only this one has.
    """

    port: int
    log: Path
    process: subprocess.Popen[bytes]
    flags: tuple[str, ...]

    @classmethod
    def start(
        cls, python: Path, plugin: Path, model: Path, log: Path, *flags: str, seconds: float = READY_SECONDS
    ) -> Self:
        """Start a server on the CPU and wait until it answers.

        Args:
            python: Of the engine's environment.
            plugin: Folder of the plugin.
            model: Checkpoint.
            log: Where its output goes.
            flags: Of the engine, beside those that every test wants.
            seconds: How long it may take; three processes import the engine for 20 seconds of CPU each.
        """
        port = free_port()
        command = [
            str(python), "-m", "sglang.launch_server", "--model-path", str(model), "--device", "cpu",
            "--dtype", "bfloat16", "--host", HOST, "--port", str(port), "--mem-fraction-static", "0.3",
            "--max-total-tokens", "8192", "--max-running-requests", "4", "--chunked-prefill-size", "512",
            "--skip-server-warmup", "--grammar-backend", "none", "--sleep-on-idle", *flags,
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=environment("epd,epd-cpu", plugin),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        server = cls(port, log, process, flags)
        try:
            until(server.ready, seconds, every=0.5, why=server.tail)
        except BaseException:
            server.stop()
            raise
        return server

    def ready(self) -> bool:
        """Whether it answers; fails at once when it has ended."""
        status = self.process.poll()
        assert status is None, f"ended with {status}: {self.tail()}"
        try:
            # An encoder has no other page, and answers this one by encoding a picture.
            page = "health" if "--encoder-only" in self.flags else "model_info"
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/{page}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-4000:]

    def post(self, path: str, body: object, seconds: float = 120) -> Any:
        """Ask it something as JSON, and read its answer as JSON."""
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read())

    def flush(self) -> None:
        """Forget every cached prefix."""
        request = urllib.request.Request(f"http://{HOST}:{self.port}/flush_cache", method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200

    def generate(self, ids: Sequence[int], tokens: int = 6) -> Generated:
        """Answer greedily, with the log-probabilities of the answer's tokens."""
        return Generated.of(self.post("/generate", question(ids, tokens)))

    def get(self, path: str) -> str:
        """Ask it something as text."""
        with urllib.request.urlopen(f"http://{HOST}:{self.port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def stop(self) -> None:
        """End all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def question(ids: Sequence[int], tokens: int) -> dict[str, Any]:
    """The body of `/generate`: so many tokens, greedily, with their log-probabilities."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": list(ids), "sampling_params": sampling, "return_logprob": True, "logprob_start_len": -1}


@dataclass(frozen=True)
class Generated:
    """An answer of the engine.

    Attributes:
        ids: Its tokens.
        logprobs: Of each.
        cached: Tokens of the prompt that were in the cache.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """From the answer of `/generate`."""
        meta = document["meta_info"]
        logprobs = tuple(each[0] for each in meta["output_token_logprobs"])
        return cls(tuple(document["output_ids"]), logprobs, meta["cached_tokens"])
