"""`epd explain`: what would run, and why each part of it is what it is.

The tricky idea: nothing here knows how a command line is made. The arguments are read off the rendered pod, each is
traced back to the field, the operator or the profile that it can come from, and the rules say which values the engine
resolves them to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from epd_operator.api import names
from epd_operator.cli import refusal, swa_pool
from epd_operator.cli.render import Options, planned_for
from epd_operator.cli.terminal import clean, style_of, write
from epd_operator.engines import lookup, table, validation
from epd_operator.engines.advisories import AdvisoryError, load
from epd_operator.rules.finding import plain
from epd_operator.rules.owner import Declaration, Field, field_of
from epd_operator.rules.process import mapping, read

if TYPE_CHECKING:
    from epd_operator.cli.document import Document
    from epd_operator.cli.terminal import Style
    from epd_operator.rules.expression import Leaf, Named
    from epd_operator.rules.judgement import Judgement
    from epd_operator.rules.owner import Owner

SCHEMA: Final = "epd.dev/explain/v1"
OPERATOR: Final = "operator"
PROFILE: Final = "profile default"


@dataclass(frozen=True)
class Part:
    """One flag or variable of a process.

    Attributes:
        name: Of the flag or variable.
        text: As it stands on the command line, or the variable's value.
        source: The field that it comes from, the operator, or the profile.
    """

    name: str
    text: str
    source: str


@dataclass(frozen=True)
class Resolved:
    """A value that the engine settles by itself.

    Attributes:
        name: The engine's own name for it, where it has one.
        effective: The resolved value.
        given: What was given for it; None when nothing was.
        source: What was given; empty when nothing was.
        overridden: The engine takes another value than the one that was given.
    """

    name: str
    effective: Any
    given: Any
    source: str
    overridden: bool


@dataclass(frozen=True)
class Account:
    """One role explained.

    Attributes:
        role: Its name.
        program: The arguments before the flags.
        flags: Every flag of its command line.
        environment: Every variable of its container.
        resolved: The values that the engine settles by itself.
    """

    role: str
    program: tuple[str, ...]
    flags: tuple[Part, ...]
    environment: tuple[Part, ...]
    resolved: tuple[Resolved, ...]


@dataclass(frozen=True)
class Explanation:
    """One object explained.

    Attributes:
        pool: None where it asks for none.
    """

    document: Document
    roles: tuple[Account, ...]
    pool: swa_pool.Pool | None


def show(
    paths: Sequence[str],
    output: Literal["text", "json"],
    advisories: str | None = None,
    turns_per_second: float | None = None,
) -> int:
    """Explain every object in files and folders; the exit status.

    Args:
        paths: Files, folders, or `-` for standard input.
        output: Form of the answer.
        advisories: File with engine builds known to misbehave, to be warned of on standard error.
        turns_per_second: Of each deployment, to say how often its pool of windows would hit then.
    """
    try:
        known = load(Path(advisories)) if advisories else ()
    except AdvisoryError as error:
        for line in str(error).splitlines():
            write(clean(f"epd: {line}"), sys.stderr)
        return 2
    result, status = refusal.accepted(paths, known)
    explained = [
        Explanation(document, tuple(accounts(document)), swa_pool.pool(document, turns_per_second))
        for document in result
    ]
    if output == "json":
        print(json.dumps({"schema": SCHEMA, "documents": [_record(one) for one in explained]}, indent=2))
        return status
    style = style_of(sys.stdout)
    for one in explained:
        for line in _text(one, style):
            write(line, sys.stdout)
    return status


def accounts(document: Document) -> list[Account]:
    """The roles of an accepted object, in the order encode, prefill, decode."""
    containers = _containers(planned_for(document, Options()).objects)
    judgement = validation.validate(document.data)
    engine = document.data["spec"]["engine"]
    ruleset = table.RULESETS.get(engine["type"])
    values = {value.name: value for value in ruleset.resolved} if ruleset is not None else {}
    return [
        _account(document.data, role, containers[role], values, judgement) for role in names.ROLES if role in containers
    ]


def _containers(objects: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The engine's container of each role."""
    result = {}
    for obj in objects:
        role = obj["metadata"]["labels"].get(names.LABEL_COMPONENT, "")
        spec = mapping(obj.get("spec"))
        group = mapping(spec.get("leaderWorkerTemplate"))
        template = spec.get("template") or group.get("leaderTemplate") or group.get("workerTemplate")
        if role in names.ROLES and isinstance(template, Mapping):
            result[role] = template["spec"]["containers"][0]
    return result


def _account(
    data: Mapping[str, Any],
    role: names.RoleName,
    container: Mapping[str, Any],
    values: Mapping[str, Named],
    judgement: Judgement,
) -> Account:
    arguments = [*container["command"], *container["args"]]
    start = next((at for at, argument in enumerate(arguments) if argument.startswith("--")), len(arguments))
    origin = _Origin(data, role, judgement.version)
    resolved = judgement.resolved.get(role, {})
    return Account(
        role=role,
        program=tuple(arguments[:start]),
        flags=tuple(Part(flag, text, origin.of_flag(flag)) for flag, text in _grouped(arguments[start:])),
        environment=tuple(
            Part(entry["name"], _value(entry), origin.of_variable(entry["name"])) for entry in container["env"]
        ),
        resolved=tuple(
            origin.resolved(values[name], value)
            for name, value in resolved.items()
            if name in values and origin.concerns(values[name])
        ),
    )


def _grouped(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with the arguments that belong to it."""
    group: list[str] = []
    for argument in arguments:
        if argument.startswith("--") and group:
            yield _name(group[0]), " ".join(group)
            group = []
        group.append(argument)
    if group:
        yield _name(group[0]), " ".join(group)


def _name(argument: str) -> str:
    return argument.removeprefix("--").partition("=")[0]


def _value(entry: Mapping[str, Any]) -> str:
    source = mapping(entry.get("valueFrom"))
    if secret := mapping(source.get("secretKeyRef")):
        return f"<key {secret.get('key')} of Secret {secret.get('name')}>"
    if place := mapping(source.get("fieldRef")):
        return f"<{place.get('fieldPath')} of the pod>"
    return str(entry.get("value", ""))


class _Origin:
    """Traces the parts of one role back to what set them."""

    def __init__(self, data: Mapping[str, Any], role: names.RoleName, version: str) -> None:
        self._data = data
        self._role = role
        engine = data["spec"]["engine"]
        self._catalogue = lookup(engine["type"], version, engine.get("plugins", ())).args(role)
        self._declared = mapping(read(data, f"spec.roles.{role}"))

    def of_flag(self, flag: str) -> str:
        """The field, the operator or the profile."""
        if flag in mapping(self._declared.get("args")):
            return f"spec.roles.{self._role}.args.{flag}"
        spec = self._catalogue.find(flag) or self._catalogue.find(flag.removeprefix("no-"))
        if spec is not None and spec.owner is None:
            return PROFILE
        field = None if spec is None else self._field(spec.owner)
        if field is None:
            return OPERATOR
        return field if read(self._data, field) is not None else f"{OPERATOR}, as {field} is not set"

    def _field(self, owner: Owner | None) -> str | None:
        """The field or the role whose value is handed on as that of a flag; None where there is none."""
        return field_of(owner, self._role) if isinstance(owner, Field | Declaration) else None

    def of_variable(self, name: str) -> str:
        """The field or the operator."""
        for part in ("env", "secretEnv"):
            if name in mapping(self._declared.get(part)):
                return f"spec.roles.{self._role}.{part}.{name}"
        return OPERATOR

    def concerns(self, value: Named) -> bool:
        """Whether the role reads any flag that settles a value; an encoder settles much that it never uses."""
        flags = [leaf.name for leaf in value.settles if leaf.source == "flag"]
        return not flags or any(self._catalogue.find(name) is not None for name in flags)

    def resolved(self, value: Named, effective: Any) -> Resolved:
        """A settled value with the first thing that was given for it."""
        for leaf in value.settles:
            place, given = self._given(leaf)
            if given is not None:
                # A value of another name follows from what was given; "auto" asks the engine to choose.
                same = leaf.name.replace("-", "_") == value.name and given != "auto"
                return Resolved(value.name, effective, given, place, overridden=same and given != effective)
        return Resolved(value.name, effective, None, "", overridden=False)

    def _given(self, leaf: Leaf) -> tuple[str, Any]:
        match leaf.source:
            case "flag":
                owner = self._catalogue.owner(leaf.name)
                if owner is None:
                    args = mapping(self._declared.get("args"))
                    return f"spec.roles.{self._role}.args.{leaf.name}", args.get(leaf.name)
                place = self._field(owner) or ""
            case "env":
                return f"spec.roles.{self._role}.env.{leaf.name}", mapping(self._declared.get("env")).get(leaf.name)
            case "field":
                place = f"spec.roles.{self._role}.{leaf.name}"
            case "spec":
                place = f"spec.{leaf.name}"
            case "model":
                return "", None
        return place, read(self._data, place)


def _text(explanation: Explanation, style: Style) -> Iterator[str]:
    document = explanation.document
    yield style("bold", f"{document.source.name}: {document.label}")
    for account in explanation.roles:
        yield from _lines(account, style)
    if explanation.pool is not None:
        yield from swa_pool.lines(explanation.pool, style)


def _lines(account: Account, style: Style) -> Iterator[str]:
    yield ""
    yield style("bold", f"{account.role}: {' '.join(account.program)}")
    yield from _table([(part.text, part.source) for part in account.flags], style)
    if account.environment:
        yield style("bold", "  environment")
        yield from _table([(f"{part.name}={part.text}", part.source) for part in account.environment], style)
    if account.resolved:
        yield style("bold", "  as the engine resolves it")
        yield from _table([_settled(value) for value in account.resolved], style)


def _settled(value: Resolved) -> tuple[str, str]:
    text = f"{value.name} = {plain(value.effective)}" if value.effective is not None else f"{value.name} not set"
    if not value.source:
        return text, "resolved by the engine"
    shown = f"{value.source} = {plain(value.given)}"
    if value.overridden:
        return text, f"{shown}, overridden by the engine"
    return text, shown if value.given == value.effective else f"follows from {shown}"


def _table(rows: Sequence[tuple[str, str]], style: Style) -> Iterator[str]:
    cleaned = [(clean(text), clean(source)) for text, source in rows]
    column = min(max((len(text) for text, _ in cleaned), default=0), 60)
    for text, source in cleaned:
        yield f"    {text:<{column}}  {style('dim', source)}"


def _record(explanation: Explanation) -> dict[str, Any]:
    document = explanation.document
    return {
        "file": document.source.name,
        "name": document.label,
        "roles": [asdict(account) for account in explanation.roles],
        "swa_pool": None if explanation.pool is None else asdict(explanation.pool),
    }
