"""From a raw document to a DeepSeekV41Deployment, or to every fault in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from epd_operator.api.deployment import DeepSeekV41Deployment
from epd_operator.api.fault import Fault, SpecError
from epd_operator.api.marker import CelRule
from epd_operator.api.phrase import REQUIRED, of_pattern, of_type

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def parse(document: Mapping[str, Any]) -> DeepSeekV41Deployment:
    """Read a document as the API server would store it.

    Args:
        document: The object as JSON; `status` and unknown metadata are ignored, as the API server owns them.

    Raises:
        SpecError: With every fault of the document, those of types and those of rules.
    """
    if not isinstance(document, Mapping):
        raise SpecError([Fault("document", document, "must be an object: give one DeepSeekV41Deployment")])
    raw = {key: value for key, value in document.items() if key != "status"}
    faults = list(broken_rules(raw))
    try:
        parsed = DeepSeekV41Deployment.model_validate(raw)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise SpecError([*faults, *dict.fromkeys(_faults(details))]) from None
    if faults:
        raise SpecError(faults)
    return parsed


def broken_rules(document: Mapping[str, Any]) -> Iterator[Fault]:
    """The faults that the rules on the models find in a raw document, even where types are wrong."""
    for path, rule, value in _rules_of(DeepSeekV41Deployment, document, ""):
        if rule.holds is None:
            continue
        try:
            kept = rule.holds(value)
        except (AttributeError, IndexError, KeyError, TypeError):
            continue  # the shape is wrong, which pydantic reports with a better message
        if not kept:
            culprits = [f"{path}.{part}" for part in rule.culprits(value)] if rule.culprits is not None else [path]
            for place in culprits:
                yield Fault(place, value if isinstance(value, str) else None, rule.message)


def _rules_of(model: type[BaseModel], value: Any, path: str) -> Iterator[tuple[str, CelRule, Any]]:
    if not isinstance(value, Mapping):
        return
    for rule in getattr(model, "rules", ()):
        yield path or "metadata.name", rule, value
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if alias not in value:
            continue
        below = f"{path}.{alias}" if path else alias
        for rule in _markers(field.metadata, field.annotation):
            yield below, rule, value[alias]
        for inner in _models(field.annotation):
            if isinstance(value[alias], Mapping):
                yield from _rules_of(inner, value[alias], below)
            elif isinstance(value[alias], list):
                for index, item in enumerate(value[alias]):
                    yield from _rules_of(inner, item, f"{below}[{index}]")


def _markers(metadata: Sequence[Any], annotation: Any) -> Iterator[CelRule]:
    """The rules among a field's annotations, including those inside an optional or a container."""
    yield from (marker for marker in metadata if isinstance(marker, CelRule))
    for inner in get_args(annotation):
        yield from (marker for marker in getattr(inner, "__metadata__", ()) if isinstance(marker, CelRule))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models inside an annotation such as `X | None`, `list[X]` or `dict[str, X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _faults(details: Sequence[ErrorDetails]) -> Iterator[Fault]:
    for detail in details:
        field, known = _place(detail["loc"])
        value = None if isinstance(detail["input"], Mapping | list) else detail["input"]
        match detail["type"]:
            case "missing":
                yield Fault(field, None, f"{REQUIRED}: add it")
            case "extra_forbidden":
                near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
                yield Fault(field, None, f"unknown field: {hint}")
            case "literal_error":
                yield Fault(field, value, f"must be one of {detail['ctx']['expected'].replace(' or ', ', ')}")
            case "string_pattern_mismatch":
                yield Fault(field, value, of_pattern(detail["ctx"]["pattern"], value))
            case other:
                yield Fault(field, value, of_type(other, value) or _sentence(detail["msg"]))


def _sentence(message: str) -> str:
    """Pydantic's message without its subject: 'Input should be a valid integer' -> 'must be a valid integer'."""
    message = message.removeprefix("Value error, ")
    for subject in ("Input should ", "String should ", "List should ", "Dictionary should "):
        if message.startswith(subject):
            return f"must {message.removeprefix(subject)}"
    return message


def _place(location: Sequence[int | str]) -> tuple[str, list[str]]:
    """The path as a user writes it, and the fields known at its parent.

    Pydantic adds the branch of a union to a location; a branch is not a field, so what the models do not know is
    dropped unless it stands in a free map.
    """
    path = ""
    known: list[str] = []
    annotation: Any = DeepSeekV41Deployment
    for index, part in enumerate(location):
        if isinstance(part, int):
            path = f"{path}[{part}]"
            continue
        model = next(_models(annotation), None)
        if model is None:
            if _is_free_map(annotation):
                path = f"{path}.{part}"
                annotation = None
            continue
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        known = list(fields)
        if part not in fields and _is_free_map(annotation):
            path = f"{path}.{part}"
            annotation = model
            continue
        if part not in fields and index < len(location) - 1:
            continue
        path = f"{path}.{part}" if path else part
        annotation = fields[part].annotation if part in fields else None
    return path, known


def _is_free_map(annotation: Any) -> bool:
    origin = getattr(annotation, "__origin__", None)
    return origin is dict or any(_is_free_map(inner) for inner in get_args(annotation))
