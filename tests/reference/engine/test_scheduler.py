from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from epd_workers.reference.engine.job import Job, Piece
from epd_workers.reference.engine.request import (
    Aborted,
    EngineFailed,
    Handover,
    InvalidRequest,
    Limits,
    Prompt,
    Sampling,
    Step,
)
from epd_workers.reference.engine.scheduler import EncodeJob, Scheduler
from tests.support.reference.engines import check_clean, limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.engine.job import Event, Kind
    from epd_workers.reference.model.interface import Extend, Output
    from epd_workers.reference.model.loaded import LoadedModel

LIMITS = limits(max_total_tokens=400, chunked_prefill_size=8)


def job(rid: str, log: list[tuple[str, Event]], tokens: int, new: int = 8, kind: Kind = "generate") -> Job:
    prompt = Prompt(list(range(65, 65 + tokens)))
    sampling = Sampling(max_new_tokens=new, temperature=0, ignore_eos=True)
    return Job(rid, kind, prompt, sampling, 0, lambda event: log.append((rid, event)))


def scheduler(model: LoadedModel, given: Limits = LIMITS) -> Scheduler:
    return Scheduler(model, given)


def watch(engine: Scheduler) -> list[list[tuple[int, int, bool]]]:
    """(start, rows, decode) of every extend of every call of the model from now on."""
    calls: list[list[tuple[int, int, bool]]] = []
    forward = engine._forward

    def watched(extends: Sequence[Extend]) -> Output:
        calls.append([(extend.start, len(extend.token_ids), extend.decode) for extend in extends])
        return forward(extends)

    engine._forward = watched  # type: ignore[assignment] # looks in between
    return calls


def test_a_long_prompt_holds_up_neither_answers_nor_short_prompts(model: LoadedModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    engine.submit(job("running", log, tokens=3, new=50))
    engine.step()
    engine.submit(job("long", log, tokens=64))
    engine.submit(job("short", log, tokens=3))
    log.clear()
    for _ in range(9):
        engine.step()
    names = [rid for rid, _ in log]
    assert names.count("running") == 9
    assert names.index("short") <= 2
    assert names.index("long") > names.index("short")
    assert "long" in names[-3:]


def test_a_step_is_one_call_for_all_answers_and_one_for_the_prompts_that_fit(model: LoadedModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    calls = watch(engine)
    for rid, tokens in (("a", 3), ("b", 20), ("c", 5), ("d", 1), ("e", 4)):
        engine.submit(job(rid, log, tokens=tokens))
    for _ in range(4):
        engine.step()
    assert calls == [
        [(0, 3, False), (0, 5, False)],  # b's 8 do not fit beside a's 3; c's 5 do
        [(3, 1, True), (5, 1, True)],
        [(0, 8, False)],
        [(4, 1, True), (6, 1, True)],
        [(0, 1, False), (0, 4, False)],
        [(5, 1, True), (7, 1, True), (1, 1, True), (4, 1, True)],
        [(8, 8, False)],
    ]


@pytest.mark.parametrize("replay", [None, "0.5.23"])
def test_chunks_do_not_depend_on_the_load(model: LoadedModel, replay: str | None) -> None:
    def chunks(others: int) -> list[tuple[int, int]]:
        engine = scheduler(model, limits(chunked_prefill_size=8, replay=replay))
        calls = watch(engine)
        for other in range(others):
            engine.submit(job(str(other), [], tokens=1 + other, new=1))
        engine.submit(job("long", [], tokens=29, new=1))
        while engine.load().running:
            engine.step()
        return [(start, rows) for call in calls for start, rows, _ in call if start or rows == 8]

    assert chunks(0) == chunks(5) == [(0, 8), (8, 8), (16, 8), (24, 5)]


def test_pages_leave_as_they_fill(model: LoadedModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    engine.submit(job("p", log, tokens=18, kind="prefill"))
    counts = []
    for _ in range(3):
        engine.step()
        counts.append([event.index for _, event in log if isinstance(event, Piece) and event.kind == "page"])
    assert counts == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert isinstance(log[-1][1], Handover)
    assert (log[-1][1].pages, log[-1][1].prompt_tokens) == (5, 18)
    assert [(event.kind, event.index) for _, event in log[-4:-1] if isinstance(event, Piece)] == [
        ("window", 2),
        ("window", 3),
        ("window", 4),
    ]
    assert engine.load().used_tokens == 0
    check_clean(engine._memory)


def test_load_counts_exactly(model: LoadedModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model, limits(max_total_tokens=43, max_running_requests=2, chunked_prefill_size=8))
    engine.submit(job("a", log, tokens=5, new=4))  # 8 positions: the last token is never run
    engine.submit(job("b", log, tokens=5, new=5))
    engine.submit(job("c", log, tokens=5, new=1))
    load = engine.load()
    assert (load.running, load.waiting, load.used_tokens, load.max_total_tokens) == (2, 1, 8 + 12, 40)
    while engine.load().running:
        engine.step()
    load = engine.load()
    assert (load.running, load.waiting, load.used_tokens) == (0, 0, 0)
    assert (load.prompt_tokens, load.generated_tokens) == (15, 10)
    assert [(rid, event.finish) for rid, event in log if isinstance(event, Step) and event.finish] == [
        ("a", "length"),
        ("c", "length"),
        ("b", "length"),
    ]


def test_an_aborted_request_frees_everything_at_once_and_says_so(model: LoadedModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model, limits(max_total_tokens=40, max_running_requests=1))
    engine.submit(job("a", log, tokens=5))
    engine.submit(job("b", log, tokens=5, kind="prefill"))
    engine.submit(job("c", log, tokens=5))
    engine.abort("b")
    engine.abort("a")
    assert engine.load().used_tokens == 12  # c's
    engine.abort("c")
    engine.abort("never there")
    assert (engine.load().running, engine.load().waiting, engine.load().used_tokens) == (0, 0, 0)
    assert [(rid, type(event)) for rid, event in log] == [("b", Aborted), ("a", Step), ("c", Step)]
    assert log[1][1] == log[2][1] == Step(-1, finish="abort")
    engine.step()
    assert len(log) == 3


@pytest.mark.parametrize("kind", ["generate", "prefill"])
@pytest.mark.parametrize("decode", [False, True])
def test_an_abort_during_a_step_drops_its_result(model: LoadedModel, kind: Kind, decode: bool) -> None:
    """Its reservation is free at once; its pages, which the step may be writing, when the step is over."""
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    forward = engine._forward
    engine.submit(job("stays", log, tokens=3, new=50))
    engine.step()
    engine.submit(job("goes", log, tokens=8, kind=kind))
    held = []

    def aborting(extends: Sequence[Extend]) -> Output:
        output = forward(extends)
        if extends[0].decode == decode:
            other = threading.Thread(target=engine.abort, args=["goes"])
            other.start()
            other.join()
            assert (engine.load().running, engine.load().used_tokens) == (1, 52)
            held.append(engine._memory.pool.pages.free_count)
        return output

    engine._forward = aborting  # type: ignore[assignment] # looks in between
    for _ in range(3):
        engine.step()
    assert [type(event) for rid, event in log if rid == "goes"] == [Aborted if kind == "prefill" else Step]
    assert len([rid for rid, _ in log if rid == "stays"]) == 4
    assert engine._memory.pool.pages.free_count == 100 - 2
    assert held[0] == (99 if decode else 97)
    engine.abort("stays")
    check_clean(engine._memory)


def test_withdrawing_an_old_request_spares_a_new_one_of_the_same_id(model: LoadedModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    old = job("a", log, tokens=5, new=1)
    engine.submit(old)
    engine.step()
    engine.submit(job("a", log, tokens=5))
    engine.withdraw(old)
    assert engine.load().running == 1


def test_an_id_in_use_is_refused(model: LoadedModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model, limits(max_total_tokens=40, max_running_requests=1))
    for rid in ("runs", "waits"):
        engine.submit(job(rid, log, tokens=5))
    for rid in ("runs", "waits"):
        with pytest.raises(InvalidRequest, match=f"rid is '{rid}'"):
            engine.submit(job(rid, log, tokens=5))
    assert (engine.load().running, engine.load().waiting) == (1, 1)


def test_closing_ends_everything(model: LoadedModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model, limits(max_total_tokens=40, max_running_requests=1))
    images: list[object] = []
    for rid in ("a", "b", "c"):
        engine.submit(job(rid, log, tokens=5))
    engine.submit_image(EncodeJob(Image.new("RGB", (9, 9)), images.append))
    engine.close("over")
    engine.close("again")
    assert [event for _, event in log] == [Step(-1, finish="abort")] * 3
    assert isinstance(images[0], EngineFailed)
    load = engine.load()
    assert (load.running, load.waiting, load.encoding, load.used_tokens) == (0, 0, 0, 0)
    assert not engine.wait()
    with pytest.raises(EngineFailed, match="over"):
        engine.submit(job("d", log, tokens=5))
    with pytest.raises(EngineFailed, match="over"):
        engine.submit_image(EncodeJob(Image.new("RGB", (9, 9)), images.append))


def test_a_failing_model_step_fails_its_request_alone(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    forward = engine._forward
    engine.submit(job("good", log, tokens=3))
    engine.step()

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    def prompts_fail(extends: Sequence[Extend]) -> Output:
        if not extends[0].decode:
            broken()
        return forward(extends)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_forward", prompts_fail)
        patch.setattr(model, "encode_image", broken)
        engine.submit(job("bad", log, tokens=3))
        images: list[object] = []
        engine.submit_image(EncodeJob(Image.new("RGB", (9, 9)), images.append))
        engine.step()
    assert "no memory" in str(images[0])
    failure = next(event for rid, event in log if rid == "bad")
    assert isinstance(failure, EngineFailed)
    while engine.load().running:
        engine.step()
    assert [event.finish for rid, event in log if rid == "good" and isinstance(event, Step)][-1] == "length"
    check_clean(engine._memory)


def test_logits_that_cannot_be_used_fail_their_request_alone(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    forward = engine._forward

    def cut(extends: Sequence[Extend]) -> Output:
        output = forward(extends)
        output.logits[0] = output.logits[0][:, :0]
        return output

    engine._forward = cut  # type: ignore[assignment] # looks in between
    for rid in ("first", "second"):
        engine.submit(job(rid, log, tokens=3, new=1))
    engine.step()
    assert [(rid, type(event)) for rid, event in log] == [("first", EngineFailed), ("second", Step)]
    check_clean(engine._memory)
