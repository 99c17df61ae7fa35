"""`epd-reference evaluate`: how many held-out questions a checkpoint answers exactly right, and what replay costs.

Every mode answers the same questions greedily through the serving forward over paged caches.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.sequence import Sequence as CachedSequence
from epd_workers.reference.model.checkpoint import BadCheckpoint
from epd_workers.reference.model.engram_hash import BadTokenMap
from epd_workers.reference.model.interface import Extend, Rows
from epd_workers.reference.model.loaded import PACKAGED, LoadedModel
from epd_workers.reference.model.replay import PRESETS
from epd_workers.reference.model.tokenizer import BadTokenizer
from epd_workers.reference.training.arguments import whole
from epd_workers.reference.training.quiz import image_cases, recall_cases
from epd_workers.reference.training.sample import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from epd_workers.reference.cache.geometry import CacheType
    from epd_workers.reference.model.forward import Forward
    from epd_workers.reference.training.quiz import Case

CASES: Final = 120
_LONGEST_ANSWER: Final = 48
_PAGE: Final = 16
_TELL_SECONDS: Final = 10.0
_OWN: Final = 24  # tokens behind a prefix hit, at least


@dataclass(frozen=True)
class Mode:
    """A way to serve: cache format, preset of decoder replay, and whether the encoder half replays a prefix hit."""

    name: str
    cache_type: CacheType
    preset: str | None = None
    hit: bool = False


MODES: Final = (
    Mode("replay off", "fp4"),
    Mode("replay off, bf16 caches", "bf16"),
    Mode("decoder replay", "fp4", "0.5.23"),
    Mode("decoder and encoder replay", "fp4", "0.5.23", hit=True),
)


class Examinee:
    """A checkpoint that answers questions in one mode.

    Args:
        model: The checkpoint.
        mode: How to serve.
        longest: Tokens of the longest prompt.
    """

    def __init__(self, model: LoadedModel, mode: Mode, longest: int) -> None:
        pages = -(-(longest + _LONGEST_ANSWER) // _PAGE)
        self._model, self._mode = model, mode
        self._pool = KvPool(model.geometry(_PAGE, mode.cache_type), pages, pages)
        self._forward: Forward = model.bind(self._pool, PRESETS[mode.preset] if mode.preset else None)

    def answer(self, prompt: Sequence[int], rows: Tensor | None) -> list[int]:
        """The greedy answer's ids, without the end.

        Args:
            prompt: Ids up to the answer.
            rows: Of the picture [span, d]; None without one.
        """
        sequence = CachedSequence(self._pool)
        sequence.history = self._model.history([])
        sequence.reserve(len(prompt) + _LONGEST_ANSWER)
        try:
            return self._decode(sequence, self._prefill(sequence, list(prompt), rows))
        finally:
            sequence.release()

    def _prefill(self, sequence: CachedSequence, prompt: list[int], rows: Tensor | None) -> int:
        hit = max(0, len(prompt) - _OWN) // 2 * 2 if self._mode.hit else 0
        replayed = min(hit, self._model.config.window)
        if hit:
            self._forward([self._extend(sequence, prompt, rows, range(hit))])
            sequence.history = self._model.history(prompt[: hit - replayed])
        extend = self._extend(sequence, prompt, rows, range(hit - replayed, len(prompt)))
        return int(self._forward([extend]).logits[0][-1].argmax())

    def _extend(self, sequence: CachedSequence, prompt: list[int], rows: Tensor | None, span: range) -> Extend:
        """The step over a span of the prompt; what of it the sequence has already runs again."""
        images: tuple[Rows, ...] = ()
        first, end = span.start, span.stop
        if rows is not None:
            start = prompt.index(self._model.image_id)
            low, high = max(start, first), min(start + len(rows), end)
            images = (Rows(low - first, rows[low - start : high - start]),) if low < high else ()
        return Extend(prompt[first:end], sequence, images, replayed=sequence.length - first)

    def _decode(self, sequence: CachedSequence, first: int) -> list[int]:
        ids: list[int] = []
        token = first
        while token != self._model.tokenizer.eos_id and len(ids) < _LONGEST_ANSWER:
            ids.append(token)
            token = int(self._forward([Extend([token], sequence, decode=True)]).logits[0][-1].argmax())
        return ids


def progress(what: str) -> Callable[[int, int], None]:
    """Progress lines on standard error, a few seconds apart."""
    reported_at = time.monotonic()

    def say(done: int, of: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= _TELL_SECONDS:
            reported_at = time.monotonic()
            sys.stderr.write(f"{what}: {done} of {of} questions\n")

    return say


def examine(
    model: LoadedModel, mode: Mode, cases: Sequence[Case], tell: Callable[[int, int], None] | None = None
) -> dict[str, float]:
    """Part of the cases answered exactly right: by group, and over all image and all recall questions.

    Args:
        model: The checkpoint.
        mode: How to serve.
        cases: The questions.
        tell: Called after each question with how many are done, and of how many.
    """
    examinee = Examinee(model, mode, max(len(case.prompt) for case in cases))
    right: dict[str, list[bool]] = defaultdict(list)
    for done, case in enumerate(cases, 1):
        rows = model.encode_image(case.picture) if case.picture else None
        good = model.tokenizer.decode(examinee.answer(case.prompt, rows)) == case.answer
        right[case.group].append(good)
        right[case.group.split()[0]].append(good)
        if tell:
            tell(done, len(cases))
    return {group: sum(result) / len(result) for group, result in sorted(right.items())}


def quiz(model: LoadedModel, count: int, seed: int = 0) -> list[Case]:
    """So many image questions and so many recall questions."""
    vision = model.weights.config.vision
    writer = Writer(model.tokenizer, vision)
    return [*image_cases(writer, vision, count, seed), *recall_cases(writer, count, seed)]


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """Modes as rows, groups as columns, in percent."""
    groups = list(next(iter(results.values())))
    lines = ["| mode | " + " | ".join(groups) + " |", "|---|" + "---:|" * len(groups)]
    lines += [
        f"| {mode} | " + " | ".join(f"{100 * shares[group]:.1f}" for group in groups) + " |"
        for mode, shares in results.items()
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(
        prog="epd-reference evaluate", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    parser.add_argument(
        "--model-path", "--checkpoint", type=Path, metavar="DIR", help="checkpoint (default: the one in the package)"
    )
    parser.add_argument(
        "--cases", type=whole(1), default=CASES, help="image questions, and as many recall questions (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the questions (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        model = LoadedModel.load(given.model_path)
    except (BadCheckpoint, BadTokenizer, BadTokenMap) as error:
        for fault in getattr(error, "faults", (error,)):
            sys.stderr.write(f"epd-reference evaluate: {given.model_path or PACKAGED}: {fault}\n")
        return 2
    cases = quiz(model, given.cases, given.seed)
    results = {mode.name: examine(model, mode, cases, progress(mode.name)) for mode in MODES}
    sys.stdout.write((json.dumps(results, indent=2) if given.json else table(results)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
