from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from epd_workers.reference.model.decoder import DecoderSizes
from epd_workers.reference.model.interface import BadImage, Chunk, LayoutMismatch, Model, Rows
from epd_workers.reference.model.seeded import SeededModel
from epd_workers.reference.model.weights import SeededWeights

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZES = DecoderSizes(hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, intermediate=48)
MODEL: Model = SeededModel(seed=7, context_length=200, sizes=SIZES)
CALM = settings(deadline=None, max_examples=40)  # the clock of a shared machine proves nothing
IDS = st.lists(st.integers(0, 261), min_size=1, max_size=60)


def whole(ids: list[int]) -> torch.Tensor:
    return MODEL.forward(Chunk(ids, 0, all_logits=True), MODEL.new_cache(4))


def oracle(ids: list[int]) -> NDArray[np.float64]:
    """The decoder written a second time: dense, one token and one head at a time, no cache, no shared code."""
    draw = SeededWeights(7)
    hidden, dim = SIZES.hidden, SIZES.head_dim

    def matrix(name: str, inputs: int, outputs: int, gain: float = 1.0) -> NDArray[np.float64]:
        return draw.draw(name, inputs, outputs, std=gain / math.sqrt(inputs)).numpy()

    def norm(row: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(row / np.sqrt((row**2).mean() + 1e-6))

    def rotated(row: NDArray[np.float64], position: int) -> NDArray[np.float64]:
        pairs = row[0::2] + 1j * row[1::2]
        pairs = pairs * np.exp(1j * position * 10000.0 ** (-np.arange(dim // 2) * 2 / dim))
        return np.stack((pairs.real, pairs.imag), -1).reshape(-1)

    rows = [draw.draw("embedding", 262, hidden, std=1.0).numpy()[i] for i in ids]
    for layer in range(SIZES.layers):
        name = f"layers.{layer}"
        query = matrix(f"{name}.query", hidden, 32, 1.5)
        key, value = matrix(f"{name}.key", hidden, 16, 1.5), matrix(f"{name}.value", hidden, 16)
        output, down = matrix(f"{name}.output", 32, hidden), matrix(f"{name}.down", 48, hidden)
        gate, up = matrix(f"{name}.gate", hidden, 48), matrix(f"{name}.up", hidden, 48)
        keys = [[rotated(h, t) for h in (norm(row) @ key).reshape(2, dim)] for t, row in enumerate(rows)]
        values = [(norm(row) @ value).reshape(2, dim).astype(np.float32) for row in rows]
        for t, row in enumerate(list(rows)):
            heads = []
            for h, q in enumerate((norm(row) @ query).reshape(4, dim)):
                scores = [rotated(q, t) @ keys[s][h // 2].astype(np.float32) / math.sqrt(dim) for s in range(t + 1)]
                weights = np.exp(np.array(scores) - max(scores))
                heads.append(sum(w * values[s][h // 2] for s, w in enumerate(weights / weights.sum())))
            mid = row + np.concatenate(heads) @ output
            gated = norm(mid) @ gate
            rows[t] = mid + (gated / (1 + np.exp(-gated)) * (norm(mid) @ up)) @ down
    head = matrix("head", hidden, 262, 3.0)
    return np.stack([norm(row) @ head for row in rows])


def test_decoder_equals_a_second_implementation() -> None:
    ids = [256, 260, *b"a few words", 257, 261]
    ours, bias = whole(ids).double().numpy(), np.full(262, -40.0)
    bias[32:127] = -4
    bias[[32, *range(97, 123)]] = 0
    bias[257] = -5
    np.testing.assert_allclose(ours, oracle(ids) + bias, rtol=0, atol=1e-5)


@CALM
@given(IDS, st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_chunks_equal_the_whole(ids: list[int], cuts: list[int]) -> None:
    cache, start = MODEL.new_cache(4), 0
    rows: list[torch.Tensor] = []
    while start < len(ids):
        size = cuts[len(rows) % len(cuts)]
        rows.append(MODEL.forward(Chunk(ids[start : start + size], start, all_logits=True), cache))
        start += size
    torch.testing.assert_close(torch.cat(rows), whole(ids), rtol=0, atol=1e-5)
    assert cache.length == len(ids)


@CALM
@given(st.lists(IDS, min_size=1, max_size=5))
def test_a_batch_equals_singles(prompts: list[list[int]]) -> None:
    caches = [MODEL.new_cache(4) for _ in prompts]
    for ids, cache in zip(prompts, caches, strict=True):
        MODEL.forward(Chunk(ids, 0), cache)
    together = MODEL.decode([65 + i for i in range(len(prompts))], caches)
    for i, ids in enumerate(prompts):
        torch.testing.assert_close(together[i], whole([*ids, 65 + i])[-1], rtol=0, atol=1e-5)


@CALM
@given(IDS, st.integers(1, 9))
def test_pages_carry_everything(ids: list[int], page_size: int) -> None:
    cache, copy = MODEL.new_cache(page_size), MODEL.new_cache(page_size)
    MODEL.forward(Chunk(ids, 0), cache)
    pages = -(-len(ids) // page_size)
    for i in range(pages):
        copy.write_page(i, cache.read_page(i), min(page_size, len(ids) - i * page_size))
    assert copy.length == len(ids)
    assert [copy.read_page(i) for i in range(pages)] == [cache.read_page(i) for i in range(pages)]
    assert torch.equal(MODEL.decode([65], [copy]), MODEL.decode([65], [cache]))


def test_pages_that_do_not_fit_are_refused() -> None:
    cache = MODEL.new_cache(4)
    MODEL.forward(Chunk([1, 2, 3, 4, 5], 0), cache)
    page = cache.read_page(0)
    assert len(page) == cache.page_bytes == 3 * 2 * 2 * 8 * 4 * 4
    for index in (-1, 2):
        with pytest.raises(IndexError):
            cache.read_page(index)
    fresh = MODEL.new_cache(4)
    with pytest.raises(LayoutMismatch, match="has 3 bytes"):
        fresh.write_page(0, b"abc", 4)
    for index, tokens in ((1, 4), (0, 0), (0, 5)):
        with pytest.raises(IndexError):
            fresh.write_page(index, page, tokens)
    fresh.write_page(0, page, 3)
    with pytest.raises(IndexError, match="cannot follow 3"):
        fresh.write_page(1, page, 1)


def test_a_chunk_must_continue_the_cache() -> None:
    with pytest.raises(ValueError, match="holds 0 tokens"):
        MODEL.forward(Chunk([1], 3), MODEL.new_cache(4))


def test_layout_names_what_the_bytes_depend_on() -> None:
    layouts = {SeededModel(seed, 200, SIZES).config.layout for seed in (7, 8)} | {SeededModel(7, 200).config.layout}
    assert len(layouts) == 3
    assert SeededModel(7, 100, SIZES).config.layout == MODEL.config.layout


@settings(CALM, max_examples=12)
@given(st.integers(1, 700), st.integers(1, 700))
def test_encoder_gives_the_announced_span(width: int, height: int) -> None:
    image = Image.linear_gradient("L").resize((width, height))
    try:
        expected = MODEL.image_tokens(width, height)
    except BadImage:
        with pytest.raises(BadImage):
            MODEL.encode_image(image)
        return
    rows = MODEL.encode_image(image)
    assert rows.shape == (expected, MODEL.config.hidden_size)
    assert rows.dtype == torch.float32
    assert bool(rows.isfinite().all())


def test_the_answer_depends_on_the_picture_and_on_its_place() -> None:
    ids = [256, 260, *[258] * 4, *b"what?", 257, 261]
    logits = []
    for colour, offset in (("red", 2), ("red", 2), ("blue", 2), ("red", 3)):
        rows = Rows(offset, MODEL.encode_image(Image.new("RGB", (40, 40), colour)))
        logits.append(MODEL.forward(Chunk(ids, 0, (rows,)), MODEL.new_cache(4)))
    assert torch.equal(logits[0], logits[1])
    assert all(float((logits[0] - other).abs().max()) > 0.1 for other in logits[2:])
