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


def rules(engine: str, pre_stop_seconds: int, plugin: str = "", elsewhere: str = "") -> tuple[Rule, ...]:
    """The rules for the pods of one engine.

    Args:
        engine: Its name, for the texts.
        pre_stop_seconds: Seconds for which a pod goes on serving before the engine is told to stop.
        plugin: The one plugin that it has; empty: none.
        elsewhere: Which engine has one, where this one has none.
    """
    known = when(contains(_PLUGINS, plugin), 1, 0) if plugin else lift(0)
    return (
        Rule(
            id="plugin-unknown",
            when=size(_PLUGINS) > known,
            sides=(_PLUGINS,),
            says=f"the one plugin of {engine} is {plugin}" if plugin else f"{engine} has no plugins",
            fix=f"keep {plugin} alone" if plugin else f"remove spec.engine.plugins; {elsewhere}",
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
