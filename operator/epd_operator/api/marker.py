"""Kubernetes-only facts that a model carries for the CRD: list types, open objects, CEL rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


@dataclass(frozen=True)
class CelRule:
    """A rule that types cannot say.

    Attributes:
        cel: The expression for the API server; `self` is the value the rule stands on.
        message: Names the field and the way out; both the API server and `parse` show it.
        holds: The same rule over the raw value; None for a transition rule, which needs the stored object.
        culprits: The parts of a value that breaks the rule which are to blame; None when it is to blame as a whole.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None
    culprits: Callable[[Any], Iterable[str]] | None = None

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Append the rule to the field's schema."""
        result = dict(handler(schema))
        result["x-kubernetes-validations"] = [*result.get("x-kubernetes-validations", []), self.manifest()]
        return result

    def manifest(self) -> dict[str, str]:
        """The entry of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": self.message}


@dataclass(frozen=True)
class ListType:
    """How server-side apply merges a list: `map` by keys, `set` by value, `atomic` as one value."""

    kind: Literal["map", "set", "atomic"]
    keys: tuple[str, ...] = ()

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the list type, and the keys of a list-map, to the field's schema."""
        result = {**handler(schema), "x-kubernetes-list-type": self.kind}
        return {**result, "x-kubernetes-list-map-keys": list(self.keys)} if self.keys else result


@dataclass(frozen=True)
class Open:
    """A field whose inside is not described here: Kubernetes' own type, or a value of any kind."""

    schema: Literal["object", "any", "map of any"]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Replace the inside of the field's schema, keeping its size limits and description."""
        result = dict(handler(schema))
        for key in ("anyOf", "items", "properties"):
            result.pop(key, None)
        preserve = {"x-kubernetes-preserve-unknown-fields": True}
        if self.schema == "map of any":
            return {**result, "type": "object", "additionalProperties": preserve}
        result.pop("additionalProperties", None)
        return {**result, "type": "object", **preserve} if self.schema == "object" else preserve


@dataclass(frozen=True)
class IntOrString:
    """A field that the API server accepts as an integer or a string, as it does quantities.

    Attributes:
        minimum: Smallest integer; the model's pattern bounds strings.
    """

    minimum: int

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Drop the type: `x-kubernetes-int-or-string` replaces it."""
        result = dict(handler(schema))
        result.pop("type", None)
        return {**result, "x-kubernetes-int-or-string": True, "minimum": self.minimum}
