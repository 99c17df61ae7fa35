"""The small types of the API: bounded strings, quantities, ports, maps."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic.alias_generators import to_camel

from epd_operator.api.marker import CelRule, IntOrString, ListType, Open


class Base(BaseModel):
    """A part of the API: camelCase outside, unknown fields refused, no type coerced."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        # Models nest deeply: one schema for the whole document, built when the first one is read, is a fraction of one
        # for each model.
        defer_build=True,
    )


PRINTABLE = r"^[!-~]+$"  # no \s: RE2, Rust and Python do not agree on which characters are white space
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUANTITY = r"^([1-9][0-9]*(\.[0-9]+)?|0?\.[0-9]*[1-9][0-9]*)(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
# One number a unit, the largest unit first: at most six digits, so that their sum fits what Go and CEL count in, and no
# fraction of a millisecond, which is what CEL can read.
_NUMBER = r"[0-9]{1,6}(\.[0-9]{1,3})?"
DURATION = rf"^({_NUMBER}h)?({_NUMBER}m)?({_NUMBER}s)?([0-9]{{1,6}}ms)?$"
# Neither RE2 nor this can look ahead, so a part is spelled as: no dot first, one dot then another, two dots then more.
_PART = r"([^/.][^/]*|[.][^/.][^/]*|[.][.][^/]+)"
RELATIVE_PATH = rf"^({_PART}(/{_PART})*/?)?$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


def _quantity(value: Any) -> Any:
    # A whole number is written bare in YAML; True is an int in Python but not a quantity.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _duration(value: Any) -> Any:
    bare = isinstance(value, int | float) and not isinstance(value, bool)
    if bare:
        raise ValueError(f'must have a unit: write "{value}s" for seconds, or one of h, m, ms')
    return value


def _argument(value: Any) -> Any:
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list) and all(isinstance(item, str | bool | int | float) for item in value):
        return value
    raise ValueError("must be a string, a number, true, false, or a list of these: write an object as a string of JSON")


Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=253)]
Label: TypeAlias = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
ObjectName: TypeAlias = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
Key: TypeAlias = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
ImageReference: TypeAlias = Annotated[str, Field(min_length=1, max_length=512, pattern=PRINTABLE)]
Quantity: TypeAlias = Annotated[
    str, Field(max_length=32, pattern=QUANTITY), BeforeValidator(_quantity), IntOrString(minimum=1)
]
Duration: TypeAlias = Annotated[str, Field(min_length=1, max_length=32, pattern=DURATION), BeforeValidator(_duration)]
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]
HighPort: TypeAlias = Annotated[int, Field(ge=1024, le=65535)]
Replicas: TypeAlias = Annotated[int, Field(ge=0, le=1000)]
PluginName: TypeAlias = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[-._a-zA-Z0-9]+$")]
RuleId: TypeAlias = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[-._/a-zA-Z0-9]+$")]
AbsolutePath: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/[^:]*$")]
RelativePath: TypeAlias = Annotated[
    str,
    Field(max_length=512),
    CelRule(
        f"self.matches('{RELATIVE_PATH}')",
        "must be a path relative to the volume, without '.' or '..' as a part of it: name the place from its root",
        lambda path: re.fullmatch(RELATIVE_PATH, path) is not None,
    ),
]
Scalar: TypeAlias = bool | int | float | str
Argument: TypeAlias = Annotated[Scalar | list[Scalar], PlainValidator(_argument), WithJsonSchema({})]
Arguments: TypeAlias = Annotated[dict[str, Argument], Field(max_length=128), Open("map of any")]
OpenObject: TypeAlias = Annotated[dict[str, Any], Open("object")]
Value: TypeAlias = Annotated[str, Field(max_length=4096)]
LabelValue: TypeAlias = Annotated[str, Field(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
LabelMap: TypeAlias = Annotated[dict[str, LabelValue], Field(max_length=32)]
AnnotationMap: TypeAlias = Annotated[dict[str, Value], Field(max_length=32)]
AtomicTexts: TypeAlias = Annotated[list[Text], Field(max_length=32), ListType("atomic")]
