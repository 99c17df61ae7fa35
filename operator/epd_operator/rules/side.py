"""The sides of a clash: from an expression of a rule to what a user wrote, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from epd_operator.rules.expression import At, Circumstance, Declared, Leaf, Named, Otherwise, leaves_of
from epd_operator.rules.finding import Side, plain
from epd_operator.rules.owner import Declaration, Place, field_of, label_of, place_of
from epd_operator.rules.process import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from epd_operator.rules.context import JudgementContext
    from epd_operator.rules.expression import Expr, Value
    from epd_operator.rules.process import Process


def sides(context: JudgementContext, expressions: Iterable[Expr], process: Process) -> tuple[Side, ...]:
    """What clashes, each part once."""
    result: list[Side] = []
    for expression in expressions:
        place, bare = process, expression
        while isinstance(bare, At):
            place, bare = place.at(bare.role), bare.body
        result += [side for side in _sides(context, bare, place) if side not in result]
    return tuple(result)


def settling(side: Expr) -> Sequence[Leaf]:
    """What a user changes to change a side, the likeliest first."""
    return side.settles if isinstance(side, Named) else leaves_of(side)


def resolved_from(side: Expr) -> Leaf | None:
    """The leaf whose own resolved form a side is: of the same kind, and the value is named after it.

    A suffix tells stages of one value apart, such as `ep_size_asked` of `ep-size`. Anything else is another quantity,
    however few leaves settle it: `attn_tp_size` is not a form of `tp-size`.
    """
    leaves = settling(side)
    if isinstance(side, Leaf):
        return side
    if isinstance(side, Otherwise):
        return side.subject if isinstance(side.subject, Leaf) else None
    if not isinstance(side, Named):
        return None
    for leaf in leaves:
        own = leaf.name.replace("-", "_").lower()
        named = side.name == own or side.name.startswith(f"{own}_")
        if named and (leaf.kind == side.kind or leaf.source == "env"):
            return leaf
    return None


def _sides(context: JudgementContext, side: Expr, process: Process) -> Iterator[Side]:
    if isinstance(side, Circumstance):
        yield _circumstance(context, side, process)
        return
    if isinstance(side, Declared):
        yield Side(f"spec.roles.{side.role}", form="alone" if process.declares(side.role) else "value")
        return
    leaves = settling(side)
    effective = side.value(process)
    own = resolved_from(side)
    written = [leaf for leaf in leaves if _written(context, leaf, process) is not None]
    if own is not None and (not written or any(leaf is own for leaf in written)):
        yield _leaf(context, own, process, None if isinstance(side, Leaf) else effective)
        return
    shown = [_leaf(context, leaf, process) for leaf in written or leaves[:1]]
    yield from shown
    # A value that was taken over as it stands needs no second name.
    if effective is not None and [plain(one.written) for one in shown] != [plain(effective)]:
        name = side.name.replace("_", "-") if isinstance(side, Named) else "the value"
        yield Side(name, None, effective, "derived")


def _circumstance(context: JudgementContext, side: Circumstance, process: Process) -> Side:
    if side.name == "platform":
        return Side("--platform" if context.bare else "spec.engine.platform", process.platform)
    return Side("role", process.role) if context.bare else Side(f"spec.roles.{process.role}", form="alone")


def _leaf(context: JudgementContext, leaf: Leaf, process: Process, effective: Value = None) -> Side:
    """One leaf as it is written, and the value that it becomes if that differs."""
    written = _written(context, leaf, process)
    changed = None if written is not None and plain(effective) == plain(written) else effective
    catalogue = context.catalogue(process.role)
    if leaf.source == "flag" and leaf.name in process.owned:
        label = label_of(leaf, catalogue)
        if label is not None:
            return Side(label, form="alone")
        match catalogue.owner(leaf.name):
            case Declaration(role=role):
                return Side(f"spec.roles.{role}", form="alone" if process.declares(role) else "value")
            case Place():
                return Side(f"spec.roles.{process.role}", form="alone" if process.declares(process.role) else "value")
            case _:
                pass
    return Side(_place(context, leaf, process), written, changed)


def _place(context: JudgementContext, leaf: Leaf, process: Process) -> str:
    if context.bare and leaf.source in {"flag", "env"}:
        return f"--{leaf.name}" if leaf.source == "flag" else leaf.name
    if context.bare and leaf.source == "spec" and leaf.name == "engine.plugins":
        return "--plugin"
    return place_of(leaf, process.role, context.catalogue(process.role))


def _written(context: JudgementContext, leaf: Leaf, process: Process) -> Value:
    if leaf.source == "flag" and leaf.name in process.owned:
        owner = context.catalogue(process.role).owner(leaf.name)
        path = None if owner is None else field_of(owner, process.role)
        if path is not None:
            value: Value = read(process.document, path.removeprefix("spec."))
            return leaf.value(process) if isinstance(value, Mapping) else value
    if leaf.source == "field":
        return process.field(leaf.name)
    return process.spec(leaf.name) if leaf.source == "spec" else leaf.value(process)


def rests_on_a_fault(
    context: JudgementContext, expressions: Sequence[Expr], shown: Sequence[Expr], process: Process
) -> bool:
    """Whether a rule would judge a value that is wrong by itself: that is reported once, and not as a clash as well.

    Args:
        context: Names the fields that the schema refuses.
        expressions: Everything that the rule reads.
        shown: Its sides; a flag with an unusable value counts only where it is one of these.
        process: Whose rule it is.
    """
    for side in shown:
        place, bare = process, side
        while isinstance(bare, At):
            place, bare = place.at(bare.role), bare.body
        if any(leaf.source == "flag" and leaf.name in place.dropped for leaf in settling(bare)):
            return True
    return bool(context.refused) and any(
        place == refused or place.startswith(f"{refused}.")
        for place in _read_places(context, expressions, process)
        for refused in context.refused
    )


def _read_places(context: JudgementContext, expressions: Sequence[Expr], process: Process) -> Iterator[str]:
    """Where everything stands that expressions read, flags of the operator's at the fields that set them."""
    seen: set[tuple[int, str]] = set()
    waiting = [(expression, process) for expression in expressions]
    while waiting:
        node, place = waiting.pop()
        key = (id(node), place.role)
        if key in seen:
            continue
        seen.add(key)
        if isinstance(node, At):
            place = place.at(node.role)
        elif isinstance(node, Leaf):
            yield _place(context, node, place)
            if node.source == "flag" and node.name in place.owned:
                waiting.append((place.owned[node.name], place))
        waiting += [(part, place) for part in node.parts]
