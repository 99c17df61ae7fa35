"""What YAML and JSON mean, and what cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epd_operator.cli import source, tree
from epd_operator.cli.source import ReadError


def values(text: str) -> list[Any]:
    return [value for value, _ in tree.documents(text)]


def value(text: str) -> Any:
    (actual,) = values(text)
    return actual


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2026-01-01", "2026-01-01"),
        ("22:22", "22:22"),
        ("1e3", 1000),
        ("4.0", 4),
        ("0.5", 0.5),
        ("0755", 493),
        ("0o17", 15),
        ("0x1F", 31),
        ("-0b101", -5),
        ("08", 8),
        ("1_000", 1000),
        ("+3", 3),
        ("9223372036854775808", 2**63),
        ("On", True),
        ("no", False),
        ("~", None),
        ("", None),
        ('"true"', "true"),
        ("'4'", "4"),
        ("!!str 4", "4"),
        ("!!int '4'", 4),
        ("1.2.3", "1.2.3"),
        ("-", [None]),
        ("<<", "<<"),
        ("0.5.23", "0.5.23"),
    ],
)
def test_scalars_mean_what_kubectl_takes_them_for(written: str, expected: Any) -> None:
    assert value(f"a:\n  {written}" if written == "-" else f"a: {written}") == {"a": expected}
    assert type(value(f"a: {written}" if written != "-" else "a: [null]")["a"]) is type(expected)


def test_keys_are_texts() -> None:
    assert value("1: a\ntrue: b\n0x10: c\n1.5: d") == {"1": "a", "true": "b", "16": "c", "1.5": "d"}


def test_json_is_read_as_json() -> None:
    raw = {"a": 1e3, "b": [True, None, 0.5, "😀"], "tab": "\t"}
    assert value(json.dumps(raw, indent="\t")) == {**raw, "a": 1000}


def test_documents_without_content_are_left_out() -> None:
    assert values("---\n# nothing\n---\na: 1\n---\n...\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]


def test_merged_objects_give_way_to_what_is_written() -> None:
    text = (
        "base: &base {a: 1, b: 2}\nmore: &more {b: 3, c: 4}\none:\n  <<: *base\n  b: 9\nmany:\n  <<: [*base, *more]\n"
    )
    actual = value(text)
    assert actual["one"] == {"a": 1, "b": 9}
    assert actual["many"] == {"a": 1, "b": 2, "c": 4}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb:\n\tc: 1\n", 3, "a tab cannot indent"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' twice in one object, first in line 1"),
        ('{"a": 1,\n "a": 2}', 2, "the key 'a' twice"),
        ("{{- if .Values.x }}\na: 1\n", 1, "helm template"),
        ("a: {{ .Values.x }}\n", 1, "helm template"),
        ("a: [1\nb: 2\n", 2, "is not YAML"),
        ('a: "x\n', 2, "begun in line 1"),
        ("a: *nowhere\n", 1, "undefined alias"),
        ("a: &a [*a]\n", 1, "an alias to what contains it"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("a: !!binary aGk=\n", 1, "tag"),
        ("a: !mine {b: 1}\n", 1, "tag"),
        ("? [a]\n: 1\n", 1, "a key that is not a string"),
        ("~: 1\n", 1, "an empty key"),
        ("a: .inf\n", 1, "JSON has no number"),
        ("a: .NaN\n", 1, "JSON has no number"),
        ("a: 1e999\n", 1, "out of range"),
        ("a: 18446744073709551616\n", 1, "64 bits"),
        (f"a: 0x{'f' * 5000}\n", 1, "64 bits"),
        (f"a: {'9' * 5000}\n", 1, "64 bits"),
        ("a: 1\nb: \x07\n", 2, "control character 0x07"),
        (f"a: {'[' * 150}{']' * 150}\n", 1, "nested deeper"),
        ("[" * 100_000, 1, "is not YAML"),
        ("{a: " * 5000 + "}" * 5000, 1, "is not YAML"),
        ("a: {<<: 3}\n", 1, "merges"),
    ],
    ids=lambda part: part[:20] if isinstance(part, str) else None,
)
def test_what_cannot_be_read_is_told_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ReadError, match=message.replace("(", r"\(")) as caught:
        values(text)
    assert caught.value.line == line


@pytest.mark.parametrize(("text", "message"), [('{"a": 1e999}', "range"), ("[" * 200 + "]" * 200, "nested deeper")])
def test_json_has_limits_too(text: str, message: str) -> None:
    with pytest.raises(ReadError, match=message):
        values(text)


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ReadError, match="values once its aliases are written out"):
        values("\n".join(lines))


def test_what_stands_before_a_fault_is_kept() -> None:
    actual = tree.documents("a: 1\n---\nb: [\n")
    assert next(actual)[0] == {"a": 1}
    with pytest.raises(ReadError):
        next(actual)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(codec: str) -> None:
    assert source.decode("a: ü\n".encode(codec)) == "a: ü\n"


def test_other_encodings_are_told_with_their_place() -> None:
    with pytest.raises(ReadError, match=r"is not UTF-8 \(byte 0xfc\)") as caught:
        source.decode(b"a: 1\nb: \xfc\n")
    assert (caught.value.line, caught.value.column) == (2, 4)
    with pytest.raises(ReadError, match="UTF-16"):
        source.decode(b"\xff\xfea")


def test_what_is_no_manifest_by_its_size_is_refused() -> None:
    with pytest.raises(ReadError, match="larger than 16 MiB"):
        source.decode(b"x" * (source.MAX_BYTES + 1))
