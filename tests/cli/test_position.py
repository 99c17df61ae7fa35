"""Where fields are found, and how their lines are shown."""

from __future__ import annotations

import pytest

from epd_operator.cli import tree
from epd_operator.cli.excerpt import WINDOW, excerpt
from epd_operator.cli.position import Position, locate, spelling
from epd_operator.cli.source import Source
from epd_operator.cli.terminal import Style

TEXT = """\
metadata: {name: demo}
base: &base
  inherited: 1
spec:
  roles:
    prefill:
      <<: *base
      args: {tp-size: 4, page-size: 64}
      pod:
        annotations:
          example.com/a.b: x
          example.com/a: y
        volumes:
        - name: one
        - name: two
          emptyDir: {}
      note: |
        many
        lines
      switch: On
"""
P = "spec.roles.prefill"


def stretch(path: str) -> tuple[str, bool]:
    """The text that a path is found at, and whether it is the field itself."""
    ((_, node),) = tree.documents(TEXT)
    assert node is not None
    actual = locate(node, path)
    return TEXT.split("\n")[actual.line - 1][actual.column - 1 : actual.end - 1], actual.exact


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "name: demo"),
        (f"{P}.args.tp-size", "tp-size: 4"),
        (f"{P}.args", "args: {tp-size: 4, page-size: 64}"),
        (f"{P}.pod", "pod"),
        (f"{P}.pod.annotations.example.com/a.b", "example.com/a.b: x"),
        (f"{P}.pod.annotations.example.com/a", "example.com/a: y"),
        (f"{P}.pod.volumes[1].name", "name: two"),
        (f"{P}.note", "note"),
        (f"{P}.inherited", "inherited: 1"),
    ],
)
def test_a_field_is_found(path: str, expected: str) -> None:
    assert stretch(path) == (expected, True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{P}.args.attn-cp-size", "args"),
        (f"{P}.resources.gpu", "prefill"),
        ("spec.transfer.backend", "spec"),
        (f"{P}.pod.volumes[7].name", "volumes"),
        (f"{P}.args.tp-size.x", "tp-size"),
    ],
)
def test_what_is_not_there_points_at_what_should_hold_it(path: str, expected: str) -> None:
    assert stretch(path) == (expected, False)


def test_the_spelling_of_a_value() -> None:
    ((_, node),) = tree.documents(TEXT)
    assert node is not None
    assert spelling(node, f"{P}.switch") == "On"
    assert spelling(node, f"{P}.args") is None
    assert spelling(node, f"{P}.nothing") is None


def shown(text: str, *places: tuple[int, int, int]) -> list[str]:
    notes = [(Position(*place), f"note{index}") for index, place in enumerate(places)]
    return list(excerpt(Source("x", text), notes, Style(coloured=False)))


def test_carets_stand_under_the_field() -> None:
    assert shown("a: 1\nb: 22\n", (2, 1, 6)) == ["2 | b: 22", "  | ^^^^^ note0"]


def test_two_fields_of_one_line_share_it() -> None:
    assert shown("{a: 1, b: 2}", (1, 8, 12), (1, 2, 6)) == [
        "1 | {a: 1, b: 2}",
        "  |  ^^^^ note1",
        "  |        ^^^^ note0",
    ]


def test_lines_left_out_are_marked() -> None:
    text = "\n".join(f"k{number}: v" for number in range(12))
    assert shown(text, (2, 1, 3), (11, 1, 3)) == [" 2 | k1: v", "   | ^^ note0", "...", "11 | k10: v", "   | ^^ note1"]


def test_carets_stand_right_behind_wide_characters_and_tabs() -> None:
    assert shown("漢: {b: 1}", (1, 5, 9))[1] == "  |      ^^^^ note0"
    assert shown("a:\t1", (1, 4, 5)) == ["1 | a: 1", "  |    ^ note0"]


def test_a_long_line_is_cut_around_the_caret() -> None:
    line, carets = shown("x" * 500 + "KEY" + "y" * 500, (1, 501, 504))
    assert len(line) == WINDOW + 4
    assert line[carets.index("^") : carets.rindex("^") + 1] == "KEY"


def test_a_place_behind_the_last_line_shows_nothing() -> None:
    assert shown("a", (9, 1, 2)) == ["9 | ", "  | ^ note0"]
