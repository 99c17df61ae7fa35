"""Everything that one kind of engine is judged by, over all of its versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from epd_operator.rules.expression import Leaf, Named, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from epd_operator.rules.expression import Expr, Value
    from epd_operator.rules.flag import Catalogue
    from epd_operator.rules.rule import Rule


@dataclass(frozen=True)
class Ruleset:
    """Flags, ownership, resolved values and rules of one engine.

    Attributes:
        engine_type: `SGLang` or `Reference`.
        versions: Every version, in order; a rule's `since` and `until` refer to it.
        catalogue: What flags a version knows for a role.
        owned: Flags that the operator sets on a spec, as expressions over the spec.
        rules: Every rule, of all versions.
        resolved: Values worth showing, by name, whether or not a rule reads them.
        checkpoint: Facts of the checkpoint that expressions read.
        default_platform: Platform when the user gives none.
        environment: Variables that the operator sets on every pod.
        group_environment: Variables that are set on every pod of an engine that spans pods.
    """

    engine_type: str
    versions: tuple[str, ...]
    catalogue: Callable[[str, str], Catalogue]
    owned: Mapping[str, Expr]
    rules: tuple[Rule, ...]
    resolved: tuple[Named, ...]
    checkpoint: Mapping[str, Value]
    default_platform: str
    environment: frozenset[str] = field(default_factory=frozenset)
    group_environment: frozenset[str] = field(default_factory=frozenset)

    def rank(self, version: str) -> int:
        """Place of a version in the order."""
        return self.versions.index(version)

    def rules_of(self, version: str) -> tuple[Rule, ...]:
        """The rules that a version has."""
        return self._rules_by_version[version]

    @cached_property
    def _rules_by_version(self) -> Mapping[str, tuple[Rule, ...]]:
        return {version: tuple(self._applying(version)) for version in self.versions}

    def _applying(self, version: str) -> Iterable[Rule]:
        rank = self.rank(version)
        for rule in self.rules:
            first = self.rank(rule.since) if rule.since else 0
            last = self.rank(rule.until) if rule.until else len(self.versions)
            if first <= rank < last:
                yield rule

    @cached_property
    def variables(self) -> frozenset[str]:
        """Environment variables that a rule or a resolved value reads."""
        return frozenset(
            node.name
            for root in self._roots()
            for node in walk(root)
            if isinstance(node, Leaf) and node.source == "env"
        )

    def named(self) -> Mapping[str, Named]:
        """Every resolved value that a rule reads or that is worth showing, by name.

        Raises:
            ValueError: Two different values share a name.
        """
        result: dict[str, Any] = {}
        for root in self._roots():
            for node in walk(root):
                if isinstance(node, Named) and result.setdefault(node.name, node) is not node:
                    raise ValueError(f"two resolved values are called {node.name}")
        return result

    def _roots(self) -> Iterator[Expr]:
        yield from self.resolved
        for rule in self.rules:
            yield from (rule.when, *rule.sides, *rule.shows.values())
