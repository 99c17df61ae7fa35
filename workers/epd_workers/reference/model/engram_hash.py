"""Which Engram rows a token reads: hashes of the last one to four token ids.

The tricky idea: the look-back is cut at the start of the text and at every image position, so "before the start" and
"an image stood here" are the same mark, `NOTHING`, and three marks or ids are a request's whole state.

Sources: DeepSeek-V4.1-Flash inference/engram.py, revision dba1be0a; SGLang 0.5.23, layers/engram.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from tokenizers import Regex, normalizers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_workers.reference.model.config import TextConfig

NOTHING: Final = -1
_WITNESSES: Final = (2, 3, 5, 7)  # exact below the limit (Jaeschke, 1993)
_WITNESS_LIMIT: Final = 3_215_031_751
_LONE_SPACE: Final = "\ue000"  # private use: no vocabulary has it, and Strip keeps it


class BadTokenMap(ValueError):
    """A vocabulary that the Engram tables were not made for."""


def is_prime(number: int) -> bool:
    """Deterministic Miller-Rabin, exact below 3,215,031,751.

    Raises:
        ValueError: The number is not below that limit.
    """
    if number >= _WITNESS_LIMIT:
        raise ValueError(f"{number} is too large for this test: must be below {_WITNESS_LIMIT}")
    if number < 2 or any(number % witness == 0 for witness in _WITNESSES):
        return number in _WITNESSES
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    odd = (number - 1) >> twos
    for witness in _WITNESSES:
        power = pow(witness, odd, number)
        if power in {1, number - 1}:
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def primes(config: TextConfig) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Table sizes [Engram layers][n-gram orders][heads].

    In the order layer, n-gram order, head: each (layer, order) searches upward from `engram_vocab_size` again and takes
    the first primes that no earlier one took.
    """
    orders = config.engram_max_ngram_size - 1
    return _primes(len(config.engram_layer_ids), orders, config.engram_n_heads, config.engram_vocab_size)


@lru_cache(maxsize=64)
def _primes(layers: int, orders: int, heads: int, start: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    used: set[int] = set()

    def search() -> tuple[int, ...]:
        primes: list[int] = []
        candidate = start
        while len(primes) < heads:
            if candidate not in used and is_prime(candidate):
                primes.append(candidate)
                used.add(candidate)
            candidate += 1
        return tuple(primes)

    return tuple(tuple(search() for _ in range(orders)) for _ in range(layers))


def table_rows(config: TextConfig) -> tuple[int, ...]:
    """Rows of each Engram layer's table: the sum of its primes, and what `engram_num_embeddings` must say."""
    return tuple(sum(sum(order) for order in layer) for layer in primes(config))


def multipliers(layer: int, compressed_vocab: int, positions: int = 4) -> tuple[int, ...]:
    """Odd factors, one for a token and each look-back.

    2 r + 1 with r from NumPy's `default_rng(10007 * layer)`, below (int64 max // compressed_vocab) // 2, so that a
    compressed id times its factor fits int64.
    """
    bound = max(1, (np.iinfo(np.int64).max // compressed_vocab) // 2)
    drawn = np.random.default_rng(10007 * layer).integers(0, bound, size=positions, dtype=np.int64)
    return tuple(2 * int(value) + 1 for value in drawn)


def token_map(texts: Sequence[str], raw: Sequence[str]) -> tuple[tuple[int, ...], int]:
    """Merge tokens that read alike: (compressed id per token id, number of compressed ids).

    NFKC, NFD, accents stripped, lower case, runs of space, tab, CR and LF as one space, a lone space kept, stripped;
    what normalises to nothing stays as it is. Equal results share an id, in the order first seen.

    Args:
        texts: What each token decodes to.
        raw: Each token's own string; it stands in where decoding yields U+FFFD, a part of a character.
    """
    normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
    seen: dict[str, int] = {}
    ids = []
    for text, own in zip(texts, raw, strict=True):
        key = own if "\ufffd" in text else normalizer.normalize_str(text) or text
        ids.append(seen.setdefault(key, len(seen)))
    return tuple(ids), len(seen)


@dataclass(frozen=True)
class History:
    """The token ids before the next position, oldest first; `NOTHING` where the look-back ends.

    It can be rebuilt from the prompt: a request needs it only to go on without its ids at hand.
    """

    ids: tuple[int, ...]

    @classmethod
    def empty(cls, config: TextConfig) -> History:
        """The history before position 0."""
        return cls((NOTHING,) * (config.engram_max_ngram_size - 1))


class EngramHash:
    """The rows of every Engram layer for runs of tokens.

    For the token at p and look-back s, id_s = map[token at p - s], or map[pad] if that position or any nearer one is
    before the start or an image position. H_0 = id_0 M_0, H_s = H_{s-1} xor id_s M_s, and column (s, head) reads row
    (H_s mod prime) of its own section of the table.

    Args:
        config: The text model's sizes.
        mapping: Compressed id per token id, of `token_map`.

    Attributes:
        layers: Number of Engram layers.
        columns: Rows read per token and layer: orders x heads.

    Raises:
        BadTokenMap: The map or the table sizes are not those of the config; lists every fault.
    """

    def __init__(self, config: TextConfig, mapping: Sequence[int]) -> None:
        faults = _faults(config, mapping)
        if faults:
            raise BadTokenMap("; ".join(faults))
        sizes = [[size for order in layer for size in order] for layer in primes(config)]
        self._config = config
        self._map = torch.tensor(list(mapping), dtype=torch.int64)
        self._pad = self._map[config.engram_pad_token_id]
        self._factors = torch.tensor(
            [
                multipliers(layer, config.engram_compressed_vocab_size, config.engram_max_ngram_size)
                for layer in config.engram_layer_ids
            ],
            dtype=torch.int64,
        )
        self._sizes = torch.tensor(primes(config), dtype=torch.int64)
        self._offsets = torch.tensor([[0, *accumulate(layer)][:-1] for layer in sizes], dtype=torch.int64)
        self.layers = len(sizes)
        self.columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads

    def __call__(self, ids: Tensor, image: Tensor, history: History) -> tuple[Tensor, History]:
        """Continue one text.

        Args:
            ids: Token ids [n] int64.
            image: Whether each is an image position [n] bool.
            history: What stands before them.

        Returns:
            Rows [layers, n, columns] int64 and the history behind the run. Any split of a text gives the same.
        """
        marked = torch.cat([torch.tensor(history.ids, dtype=torch.int64), ids.masked_fill(image, NOTHING)])
        behind = marked[len(ids) :].tolist()
        return self._rows(marked), History(tuple(behind))

    def whole(self, ids: Tensor, image: Tensor) -> Tensor:
        """Rows [layers, ..., n, columns] of whole texts from position 0.

        Args:
            ids: Token ids [..., n] int64.
            image: Whether each is an image position [..., n] bool.
        """
        before = ids.new_full((*ids.shape[:-1], self._config.engram_max_ngram_size - 1), NOTHING)
        return self._rows(torch.cat([before, ids.masked_fill(image, NOTHING)], dim=-1))

    def _rows(self, marked: Tensor) -> Tensor:
        """Rows for all but the first `engram_max_ngram_size - 1` of the marked ids [..., n + 3]."""
        depth = self._config.engram_max_ngram_size
        length = marked.shape[-1] - (depth - 1)
        lead = (self.layers,) + (1,) * marked.dim()
        blocked = torch.zeros_like(marked[..., :length], dtype=torch.bool)
        mixed = torch.zeros((), dtype=torch.int64)
        columns = []
        for back in range(depth):
            source = marked[..., depth - 1 - back : depth - 1 - back + length]
            blocked = blocked | (source == NOTHING)
            compressed = torch.where(blocked, self._pad, self._map[source.clamp(min=0)])
            mixed = mixed ^ (compressed * self._factors[:, back].view(lead))
            if back:
                columns.append(mixed[..., None] % self._sizes[:, back - 1].view(*lead, -1))
        return torch.cat(columns, dim=-1) + self._offsets.view(*lead, -1)


def _faults(config: TextConfig, mapping: Sequence[int]) -> list[str]:
    faults = []
    size = len(set(mapping))
    if len(mapping) != config.vocab_size:
        faults.append(f"the token map has {len(mapping)} entries: vocab_size is {config.vocab_size}")
    if set(mapping) != set(range(size)) or size != config.engram_compressed_vocab_size:
        faults.append(
            f"the vocabulary has {size} distinct texts: engram_compressed_vocab_size is "
            f"{config.engram_compressed_vocab_size}, and every factor depends on it; use the model's own tokenizer"
        )
    if not 0 <= config.engram_pad_token_id < len(mapping):
        faults.append(f"engram_pad_token_id is {config.engram_pad_token_id}: must be below {len(mapping)}")
    if tuple(config.engram_num_embeddings) != table_rows(config):
        faults.append(
            f"engram_num_embeddings is {list(config.engram_num_embeddings)}: must be the prime sums "
            f"{list(table_rows(config))}"
        )
    return faults
