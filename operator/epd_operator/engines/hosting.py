"""Rules about the pods around an engine: what they listen on, how they end, what they load."""

from __future__ import annotations

from typing import Final

from epd_operator.rules.expression import at, contains, every, field_of, lift, size, some, spec_of, when
from epd_operator.rules.rule import Rule

RENDEZVOUS_PORT: Final = 20000
"""Where the processes of an engine that spans pods meet, on the leader."""
_RENDEZVOUS_SPAN: Final = 8
"""Ports that such a rendezvous may take from there on. Source: torch.distributed takes one, SGLang a few beside it."""

_EVERY: Final = ("encode", "prefill", "decode")
_BOOTSTRAP: Final = spec_of("transfer.bootstrapPort", "int")
_NODES: Final = field_of("nodes", "int")
_PLUGINS: Final = spec_of("engine.plugins", "list")
_GRACE: Final = field_of("pod.terminationGracePeriodSeconds", "int")


def rules(engine: str, pre_stop_seconds: int, plugins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """The rules for the pods of one engine.

    Args:
        engine: Its name, for the texts.
        pre_stop_seconds: Seconds for which a pod goes on serving before the engine is told to stop.
        plugins: The plugins that it has.
    """
    known = " and ".join(plugins)
    named = sum((when(contains(_PLUGINS, plugin), 1, 0) for plugin in plugins), lift(0))
    return (
        Rule(
            id="plugin-unknown",
            when=size(_PLUGINS) > named,
            sides=(_PLUGINS,),
            says=f"of the plugins that this release knows {engine} has {known or 'none'}, and would load no other",
            fix=f"keep {known} alone" if plugins else "remove spec.engine.plugins",
            source="docs/reference/api.md",
            roles=(),
        ),
        Rule(
            id="grace-before-drain",
            when=pre_stop_seconds >= _GRACE,
            sides=(_GRACE,),
            says=f"a pod keeps serving for {pre_stop_seconds} seconds before the engine is told to stop, "
            "so it would be killed without a chance to finish an answer",
            fix="leave it out, or set what the longest answer takes, and more than that",
            source="docs/adr/0004-when-old-revisions-go.md",
            roles=_EVERY,
        ),
        Rule(
            id="bootstrap-port-rendezvous",
            when=every(
                some(*(at(role, _NODES) > 1 for role in ("prefill", "decode"))),
                _BOOTSTRAP >= RENDEZVOUS_PORT,
                _BOOTSTRAP < RENDEZVOUS_PORT + _RENDEZVOUS_SPAN,
            ),
            sides=(_BOOTSTRAP, at("prefill", _NODES), at("decode", _NODES)),
            says=f"the pods of an engine that spans nodes meet on port {RENDEZVOUS_PORT} and the few above it",
            fix="use another port, such as 8998",
            source="docs/reference/api.md",
            roles=(),
        ),
    )
