from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from epd_sglang.hook import Hook, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Louder(Hook):
    target = Target("sglang.voice", "speak")
    signature = ("text",)
    reason = "it whispers"
    source = ("srt/voice.py:3", "srt/ear.py:4")

    @override
    def replacement(self, module: types.ModuleType, stock: Callable[[str], str]) -> Callable[[str], str]:
        return lambda text: stock(text) + "!"


class Method(Louder):
    target = Target("sglang.voice", "Voice.speak")


class Inherited(Louder):
    target = Target("sglang.voice", "Child.speak")


def module(name: str, **values: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(values)
    return made


def voice() -> types.ModuleType:
    class Voice:
        speak = staticmethod(str.lower)

    child = type("Child", (Voice,), {})
    return module("sglang.voice", speak=str.lower, Voice=Voice, Child=child)


def test_a_function_is_followed_into_modules_that_have_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    target = voice()
    taker = module("sglang.taker", speak=target.speak)
    other = module("other.taker", speak=target.speak)
    own = module("sglang.own", speak=str.upper)
    for each in (target, taker, other, own):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    Louder().apply(target)
    assert [each.speak("A") for each in (target, taker, other, own)] == ["a!", "a!", "a", "A"]


def test_hooks_on_one_name_compose_in_order() -> None:
    target = voice()
    Louder().apply(target)
    Louder().apply(target)
    assert target.speak("A") == "a!!"


def test_a_method_is_changed_in_its_class_alone() -> None:
    target = voice()
    Inherited().apply(target)
    assert (target.Child.speak("A"), target.Voice.speak("A"), target.speak("A")) == ("a!", "a", "a")
    Method().apply(target)
    assert target.Voice.speak("A") == "a!"


def test_files_are_those_of_target_and_sources() -> None:
    assert Louder().files == {"voice.py", "srt/voice.py", "srt/ear.py"}
    assert str(Method.target) == "sglang.voice:Voice.speak"
    assert (Method.target.name, Method.target.file) == ("speak", "voice.py")
