from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image

from epd_workers.reference.engine.job import Job, Page
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
from epd_workers.reference.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from epd_workers.reference.engine.job import Event, Kind
    from epd_workers.reference.model.seeded import SeededModel

LIMITS = Limits(page_size=4, max_total_tokens=400, chunked_prefill_size=8)


def job(rid: str, log: list[tuple[str, Event]], tokens: int, new: int = 8, kind: Kind = "generate") -> Job:
    prompt = Prompt(list(range(65, 65 + tokens)))
    sampling = Sampling(max_new_tokens=new, temperature=0, ignore_eos=True)
    return Job(rid, kind, prompt, sampling, 0, lambda event: log.append((rid, event)))


def scheduler(model: SeededModel, limits: Limits = LIMITS) -> Scheduler:
    return Scheduler(model, Tokenizer.eos_id, limits)


def test_a_long_prompt_holds_up_neither_answers_nor_short_prompts(model: SeededModel) -> None:
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


def test_pages_leave_as_they_fill(model: SeededModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    engine.submit(job("p", log, tokens=18, kind="prefill"))
    counts = []
    for _ in range(3):
        engine.step()
        counts.append([event.index for _, event in log if isinstance(event, Page)])
    assert counts == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert isinstance(log[-1][1], Handover)
    assert (log[-1][1].pages, log[-1][1].prompt_tokens) == (5, 18)
    assert engine.load().used_tokens == 0


def test_load_counts_exactly(model: SeededModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model, Limits(page_size=4, max_total_tokens=43, max_running_requests=2, chunked_prefill_size=8))
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


def test_an_aborted_request_frees_everything_at_once_and_says_so(model: SeededModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model, Limits(page_size=4, max_total_tokens=40, max_running_requests=1))
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
@pytest.mark.parametrize("name", ["forward", "decode"])
def test_an_abort_during_a_step_drops_its_result(
    model: SeededModel, monkeypatch: pytest.MonkeyPatch, kind: Kind, name: str
) -> None:
    log: list[tuple[str, Event]] = []
    engine, original = scheduler(model), getattr(model, name)
    engine.submit(job("stays", log, tokens=3, new=50))
    engine.step()
    engine.submit(job("goes", log, tokens=8, kind=kind))

    def aborting(*arguments: object) -> object:
        result = original(*arguments)
        engine.abort("goes")
        assert engine.load().running == 1
        return result

    monkeypatch.setattr(model, name, aborting)
    for _ in range(3):
        engine.step()
    assert [type(event) for rid, event in log if rid == "goes"] == [Aborted if kind == "prefill" else Step]
    assert len([rid for rid, _ in log if rid == "stays"]) == 4


def test_withdrawing_an_old_request_spares_a_new_one_of_the_same_id(model: SeededModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    old = job("a", log, tokens=5, new=1)
    engine.submit(old)
    engine.step()
    engine.submit(job("a", log, tokens=5))
    engine.withdraw(old)
    assert engine.load().running == 1


def test_an_id_in_use_is_refused(model: SeededModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model, Limits(page_size=4, max_total_tokens=40, max_running_requests=1))
    for rid in ("runs", "waits"):
        engine.submit(job(rid, log, tokens=5))
    for rid in ("runs", "waits"):
        with pytest.raises(InvalidRequest, match=f"rid is '{rid}'"):
            engine.submit(job(rid, log, tokens=5))
    assert (engine.load().running, engine.load().waiting) == (1, 1)


def test_closing_ends_everything(model: SeededModel) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model, Limits(page_size=4, max_total_tokens=40, max_running_requests=1))
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


def test_a_failing_model_step_fails_its_request_alone(model: SeededModel, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, Event]] = []
    engine = scheduler(model)
    engine.submit(job("good", log, tokens=3))
    engine.step()

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", broken)
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
