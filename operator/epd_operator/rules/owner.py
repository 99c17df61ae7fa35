"""What sets a flag that a user must not set, and how a message says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from epd_operator.rules.expression import Leaf
    from epd_operator.rules.flag import Catalogue

_ROLE: Final = "<role>"


@dataclass(frozen=True)
class Field:
    """A field of the spec sets the flag.

    Attributes:
        path: Path of the field, with `<role>` for the role whose flag it is.
    """

    path: str


@dataclass(frozen=True)
class Declaration:
    """The declaration of a role sets the flag: whether the role is there at all.

    Attributes:
        role: The declared role.
    """

    role: str


@dataclass(frozen=True)
class Place:
    """The place under `spec.roles` sets the flag: which role the process plays."""


@dataclass(frozen=True)
class Fixed:
    """The operator sets the flag, always to the same thing.

    Attributes:
        value: What the flag is, as it follows "it is".
    """

    value: str


@dataclass(frozen=True)
class Fact:
    """A circumstance settles the flag, or rules it out.

    Attributes:
        text: The circumstance, a main clause.
    """

    text: str


Owner: TypeAlias = Field | Declaration | Place | Fixed | Fact


def field_of(owner: Owner, role: str) -> str | None:
    """Path of the part of a spec that sets the flag of a role; None where no part does."""
    match owner:
        case Field():
            return owner.path.replace(_ROLE, role)
        case Declaration():
            return f"spec.roles.{owner.role}"
        case Place():
            return f"spec.roles.{role}"
        case Fixed() | Fact():
            return None


def setter_of(owner: Owner) -> str:
    """What sets the flag, for a table of flags; `<role>` stands for the role."""
    match owner:
        case Field():
            return owner.path
        case Declaration():
            return f"spec.roles.{owner.role}"
        case Place():
            return "the place under spec.roles"
        case Fixed():
            return f"it is {owner.value}"
        case Fact():
            return owner.text


def instead(owner: Owner, role: str) -> str:
    """What a user does or should know instead of setting the flag, a main clause."""
    match owner:
        case Field():
            return f"set {field_of(owner, role)} instead"
        case Declaration():
            return f"it belongs to spec.roles.{owner.role}"
        case Place():
            return f"{setter_of(owner)} sets it"
        case Fixed() | Fact():
            return setter_of(owner)


def place_of(leaf: Leaf, role: str, catalogue: Catalogue) -> str:
    """Path of the part of a spec in which a user changes a leaf.

    Args:
        leaf: What an expression reads.
        role: The role for which it reads it.
        catalogue: The flags of that role.
    """
    base = f"spec.roles.{role}"
    match leaf.source:
        case "flag":
            owner = catalogue.owner(leaf.name)
            field = None if owner is None else field_of(owner, role)
            return field or f"{base}.args.{leaf.name}"
        case "env":
            return f"{base}.env.{leaf.name}"
        case "field":
            return f"{base}.{leaf.name}"
        case "spec":
            return leaf.name if leaf.name.startswith("metadata.") else f"spec.{leaf.name}"
        case "model":
            return f"the checkpoint's {leaf.name}"


def label_of(leaf: Leaf, catalogue: Catalogue) -> str | None:
    """Name of a flag, with what settles it in brackets, where no part of a spec sets it; None for any other leaf.

    Args:
        leaf: What an expression reads.
        catalogue: The flags of the role for which it reads it.
    """
    owner = catalogue.owner(leaf.name) if leaf.source == "flag" else None
    match owner:
        case Fixed():
            return f"{leaf.name} ({owner.value})"
        case Fact():
            return f"{leaf.name} ({owner.text})"
        case _:
            return None
