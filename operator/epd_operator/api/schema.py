"""From a pydantic model to the structural schema that a CustomResourceDefinition can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import override

from epd_operator.api.docstring import docstrings

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaMode, JsonSchemaValue
    from pydantic_core import CoreSchema, core_schema

_DEFINITIONS = "$defs"
_REFERENCE = "$ref"


class StructuralSchema(GenerateJsonSchema):
    """Pydantic's generator, held to what `apiextensions.k8s.io/v1` accepts.

    Differences: optional means absent, never null; a literal is an enum; only scalar defaults are kept; rules of the
    model become `x-kubernetes-validations`; unknown fields are left to pruning; no titles, no references.
    """

    @override
    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        whole = super().generate(schema, mode)
        definitions = whole.pop(_DEFINITIONS, {})
        result = _clean(_inline(whole, definitions, ()))
        assert isinstance(result, dict)
        return result

    @override
    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    @override
    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        result = self.generate_inner(schema["schema"])
        default = schema.get("default")
        # An object, a list or an empty string as default would be written into every stored object and say nothing.
        shown = isinstance(default, bool | int | float) or (isinstance(default, str) and default != "")
        return {**result, "default": default} if shown else result

    @override
    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        return {"type": "string", "enum": sorted(schema["expected"])}

    @override
    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        result = super().int_schema(schema)
        return {**result, "format": "int32" if result.get("maximum", 2**31) < 2**31 else "int64"}

    @override
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        result = {**super().model_schema(schema)}
        model = schema["cls"]
        reported = docstrings(model)
        for name, info in model.model_fields.items():
            shown = result["properties"].get(info.alias or name)
            if shown is not None and name in reported:
                shown["description"] = reported[name]
        result.pop("additionalProperties", None)
        rules = [rule.manifest() for rule in getattr(schema["cls"], "rules", ())]
        return {**result, "x-kubernetes-validations": rules} if rules else result


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema of a model, with everything inlined and keys in a fixed order."""
    return dict(model.model_json_schema(schema_generator=StructuralSchema, by_alias=True))


def _inline(node: Any, definitions: dict[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions, inside) for item in node]
    if not isinstance(node, dict):
        return node
    if _REFERENCE not in node:
        return {key: _inline(value, definitions, inside) for key, value in node.items()}
    name = node[_REFERENCE].rsplit("/", 1)[1]
    if name in inside:
        raise ValueError(f"model {name} contains itself, which no structural schema can say: bound the nesting")
    target = _inline(definitions[name], definitions, (*inside, name))
    beside = {key: _inline(value, definitions, inside) for key, value in node.items() if key != _REFERENCE}
    return {**target, **beside}


def _clean(node: Any, *, named: bool = False) -> Any:
    """Drop titles and merge the two branches of an optional or a union of enums.

    Args:
        node: Part of a schema.
        named: The keys of `node` are field names, so a field called `title` stays.
    """
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    result = {key: _clean(value, named=key == "properties") for key, value in node.items() if named or key != "title"}
    if "description" in result and not named:
        result["description"] = " ".join(str(result["description"]).split())
    branches = result.get("anyOf")
    if not named and branches and all("enum" in branch for branch in branches):
        result.pop("anyOf")
        result |= {"type": "string", "enum": sorted({value for branch in branches for value in branch["enum"]})}
    return result
