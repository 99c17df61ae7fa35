"""The answer as text: what may be shown already, and where a stop string ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_workers.reference.model.tokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.model.tokenizer import Tokenizer


class TextStream:
    """Detokenizes step by step, holding back what may turn out to be the beginning of a stop string.

    The concatenation of all `push` results and `finish` is the answer without the stop string and what follows it.

    Args:
        tokenizer: The answer's.
        stop: Strings that end the answer.
        min_tokens: Stop strings completed by an earlier token than this many are ordinary text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._detokenizer = Detokenizer(tokenizer)
        self._pushed = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, token_id: int) -> str:
        """Text that is certain after this token; "" once a stop string has matched."""
        if self.matched is not None:
            return ""
        self._pushed += 1
        new = self._detokenizer.push(token_id)
        text = self._held + new
        if new and self._pushed > self._min_tokens:
            # Only a match that ends in the new text counts: an older one was ignored or would have ended the answer.
            places = [(text.find(s, max(0, len(self._held) - len(s) + 1)), s) for s in self._stop]
            hits = [(at, s) for at, s in places if at >= 0]
            if hits:
                at, self.matched = min(hits, key=lambda hit: hit[0])
                self._held = ""
                return text[:at]
        keep = max((self._prefix(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back; an unfinished character becomes U+FFFD. Empty after a match."""
        if self.matched is not None:
            return ""
        rest, self._held = self._held + self._detokenizer.finish(), ""
        return rest

    @staticmethod
    def _prefix(text: str, stop: str) -> int:
        """Length of the longest end of `text` that is a proper beginning of `stop`."""
        longest = min(len(text), len(stop) - 1)
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
