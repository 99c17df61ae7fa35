"""Draw command lines that a person could have written, most of them about flags whose rules meet.

A case is a function of its seed, its platform and, where one is asked for, its theme.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tools.differential.vocabulary import (
    ALIASES,
    COMPANIONS,
    CONTRADICTIONS,
    ENV,
    FLAGS,
    RECIPES,
    RISKY,
    RISKY_ON,
    THEMES,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

PLATFORMS = ("cuda-sm90", "cuda-sm100", "hip-gfx950")
MODEL = "deepseek-ai/DeepSeek-V4.1-Flash"
ROLES = {"null": 3, "prefill": 2, "decode": 2}
# The share of careful cases is what holds the accepted ones between 40 and 60 %.
CAREFUL = {"cuda-sm90": 0.5, "cuda-sm100": 0.48, "hip-gfx950": 0.54}
THEME_WEIGHTS = {"replay": 4, "vision": 1, "serving": 1, "memory": 2, "graph": 2}
WRONG = ("nonsense", "1.5", "", "-7", "4k", "0x10")


@dataclass(frozen=True)
class Case:
    """One question to the engine.

    Attributes:
        id: What a report calls it.
        platform: Name of the pretended hardware.
        argv: The command line after the program's name.
        env: Environment variables of the process.
        config: Fields that replace those of the model's config.json (None removes one); None for DeepSeek-V4.1.
    """

    id: str
    platform: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None


def case(seed: int, platform: str, theme: str | None = None) -> Case:
    """Draw one command line."""
    draw = Random(f"{seed} {platform} {theme}")
    draft = _Draft(draw, platform)
    # Recipes and `also` in turn, not at random: among thousands of seeds none may be missed, nor on any platform.
    if theme is None and seed % 8 == 0:
        draft.follow(RECIPES[seed // 8 % len(RECIPES)])
    else:
        draft.choose(theme or _theme(draw), also=sorted(FLAGS)[seed // 3 % len(FLAGS)])
    return draft.case(f"{theme or 'any'}/{seed}")


def cases(seed: int, count: int, platforms: tuple[str, ...] = PLATFORMS, theme: str | None = None) -> list[Case]:
    """Draw `count` command lines, the platforms taking turns."""
    return [case(seed * 1_000_000 + i, platforms[i % len(platforms)], theme) for i in range(count)]


def _theme(draw: Random) -> str:
    return draw.choices(sorted(THEMES), [THEME_WEIGHTS.get(theme, 3) for theme in sorted(THEMES)])[0]


class _Draft:
    """A command line in the making: names and values first, spelling last."""

    def __init__(self, draw: Random, platform: str) -> None:
        self.draw = draw
        self.platform = platform
        self.careful = draw.random() < CAREFUL[platform]
        self.risky = RISKY | RISKY_ON[platform] if self.careful else frozenset[str]()
        self.chosen: dict[str, str] = {}

    def follow(self, recipe: str) -> None:
        """Choose what a recipe says, and hardly anything else."""
        parts = recipe.split()
        for name, value in zip(parts, [*parts[1:], "--"], strict=True):
            if name in FLAGS or name in ENV:
                self.chosen[name] = "" if value in FLAGS else value
        self._take("--tp-size", "4")
        self._take(self.draw.choice(sorted(FLAGS)))

    def choose(self, theme: str, also: str) -> None:
        """Choose some flags of a theme, `also`, and a role."""
        draw = self.draw
        if draw.random() < 0.95:
            self._take("--tp-size")
        wanted = [draw.choice(THEMES[theme]) for _ in range(draw.choice((1, 2, 3, 3, 4, 5, 6)))]
        wanted.append(also)
        if draw.random() < 0.1:
            wanted.append(draw.choice(sorted(ENV)))
        for name in wanted:
            self._take(name)
        role = draw.choices(list(ROLES), list(ROLES.values()))[0]
        if self.careful and any(name.startswith("--disaggregation-decode") for name in self.chosen):
            role = "decode"
        if role != "null":
            self.chosen.setdefault("--disaggregation-mode", role)
        if self.careful:
            self._tidy(self.chosen.get("--disaggregation-mode", "null"))

    def _take(self, name: str, value: str | None = None) -> None:
        """Choose a flag or variable and what goes with it, unless a careful person would not."""
        if name in self.chosen:
            return
        value = self._value(name) if value is None else value
        if name in self.risky or f"{name}={value}" in self.risky:
            return
        self.chosen[name] = value
        for other, its_value in COMPANIONS.get(name, ()):
            if self.careful or self.draw.random() < 0.8:
                self._take(other, its_value)

    def _value(self, name: str) -> str:
        usual, _, odd = (FLAGS.get(name) or ENV.get(name, "")).partition("|")
        if not usual:
            return ""
        if self.draw.random() < (0.002 if self.careful else 0.008):
            return self.draw.choice(WRONG)
        if odd and self.draw.random() < (0.02 if self.careful else 0.15):
            return self.draw.choice(odd.split())
        return self.draw.choice(usual.split())

    def _tidy(self, role: str) -> None:
        """Drop what contradicts the rest at first sight."""
        chosen = self.chosen
        present = {*chosen, role}
        for name, contradicted in CONTRADICTIONS.items():
            if name in present:
                present -= contradicted
        if role != "decode":
            present = {name for name in present if not name.startswith("--disaggregation-decode")}
        chosen = {name: value for name, value in chosen.items() if name in present}
        # Attention DP as wide as TP is what most features ask for.
        for marker, sized in (("--attn-dp-size", "--attn-dp-size"), ("--enable-dp-attention", "--dp-size")):
            if marker in chosen and self.draw.random() < 0.8:
                chosen[sized] = chosen.get("--tp-size", "1")
            if marker in chosen and "--speculative-algorithm" in chosen:
                chosen["--enable-dp-lm-head"] = ""
        self.chosen = chosen

    def _spell(self, name: str, value: str) -> list[str]:
        draw = self.draw
        spelt = draw.choice(ALIASES[name]) if name in ALIASES and draw.random() < 0.3 else name
        if draw.random() < 0.01:
            spelt = spelt[: max(6, len(spelt) - draw.randint(1, 4))]
        if not (FLAGS.get(name) or name == "--model-path"):
            return [spelt]
        values = value.split("~")
        if len(values) == 1 and draw.random() < 0.2:
            return [f"{spelt}={value}"]
        return [spelt, *values]

    def case(self, name: str) -> Case:
        env = {key: value for key, value in self.chosen.items() if key in ENV}
        argv = self._spell("--model-path", MODEL)
        chosen = list(self.chosen.items())
        self.draw.shuffle(chosen)
        for flag, value in chosen:
            if flag not in env:
                argv += self._spell(flag, value)
        return Case(name, self.platform, tuple(argv), env)
