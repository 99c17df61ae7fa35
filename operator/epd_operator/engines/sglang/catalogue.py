"""SGLang's flags per version, and which of them the operator sets.

`flags.jsonl` holds the facts of release 0.5.23, a flag a line in the parser's order: names, type, choices, default,
number of values, and the roles where it does something (E encode, P prefill, D decode, A aggregated; PDA where the line
names none). To make it again for another release, install that release, build `argparse.ArgumentParser()`, hand it to
`sglang.srt.server_args.ServerArgs.add_cli_args`, and write down what each entry of `parser._actions` says.

The two commits before the release are described by their differences. Known of both: decoder replay is a plain switch
there, off unless given (commit 006cbb66, srt/arg_groups/deepseek_v4_hook.py). Everything else is inferred: their
parsers were not read, and the flags of 0.5.23 stand in for theirs.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from epd_operator.api.names import HTTP_PORT
from epd_operator.engines.sglang.ownership import ENCODER_TRANSFER
from epd_operator.rules.flag import Catalogue, FlagRole, FlagSpec
from epd_operator.rules.owner import Declaration, Fact, Field, Fixed, Place
from epd_operator.rules.version import KNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.owner import Owner

_RELEASE: Final = "0.5.23"
_REPLAY: Final = "enable-decoder-swa-bounded-replay"
_ROLES: Final[Mapping[str, FlagRole]] = {"E": "encode", "P": "prefill", "D": "decode", "A": "aggregated"}
_EVERYWHERE_ELSE: Final = "PDA"
"""Roles of a flag that was not looked into: the encoder server reads few flags, so encode needs a mark of its own."""

_NODES: Final = Field("spec.roles.<role>.nodes")
_ENCODE: Final = Declaration("encode")
_PLAIN_HTTP: Final = Fact("engine pods always serve plain HTTP to the router")
# The router checks what clients present; a key among the flags would be plain text.
_KEYS: Final = Field("spec.router.apiKeySecret")

REFUSED_IN_ARGS: Final[Mapping[str, Owner]] = {
    "host": Fixed("always 0.0.0.0"),
    "port": Fixed(f"always {HTTP_PORT}"),
    "disaggregation-mode": Place(),
    "disaggregation-transfer-backend": Field("spec.transfer.backend"),
    "disaggregation-bootstrap-port": Field("spec.transfer.bootstrapPort"),
    "disaggregation-enable-kv-checksum": Field("spec.transfer.checksum"),
    "model-path": Field("spec.model.path"),
    "revision": Field("spec.model.revision"),
    "served-model-name": Field("spec.model.servedName"),
    _REPLAY: Field("spec.roles.prefill.decoderReplay"),
    "enable-encoder-swa-bounded-replay": Field("spec.roles.prefill.encoderReplay"),
    "enable-metrics": Fact("metrics are always on"),
    "nnodes": _NODES,
    "node-rank": _NODES,
    "dist-init-addr": _NODES,
    "encoder-only": _ENCODE,
    "language-only": _ENCODE,
    "encoder-urls": _ENCODE,
    "encoder-register-urls": _ENCODE,
    "encoder-bootstrap-port": _ENCODE,
    "encoder-transfer-backend": Fixed(f"always {ENCODER_TRANSFER}"),
    "device": Field("spec.engine.platform"),
    "api-key": _KEYS,
    "admin-api-key": _KEYS,
    # These would defeat what the operator checks or relies on.
    "config": Fact("a file could set any flag past every check, so write its flags here"),
    "ssl-keyfile": _PLAIN_HTTP,
    "ssl-certfile": _PLAIN_HTTP,
    "ssl-ca-certs": _PLAIN_HTTP,
    "ssl-keyfile-password": _PLAIN_HTTP,
    "enable-ssl-refresh": _PLAIN_HTTP,
    "smg-grpc-mode": _PLAIN_HTTP,
    "grpc-mode": _PLAIN_HTTP,
    "is-embedding": Fact("the router sends requests for text, and an embedding server answers none"),
    "use-ray": Fact("Kubernetes starts the processes of an engine, and no pod has a Ray cluster"),
    "base-gpu-id": Fact("a pod sees only its own GPUs, numbered from 0"),
}
"""Flags that `spec.roles.X.args` must not hold, each with what sets it or rules it out."""

_CP_STRATEGY: Final = "set cp-strategy: interleave (was round-robin-split) or zigzag (was in-seq-split)"
_PREFILL_CP: Final = "set enable-prefill-cp: true with cp-strategy: interleave"
_FULL_PREFILL: Final = "set cuda-graph-backend-prefill to breakable, full or disabled"

REMOVED: Final[Mapping[str, str]] = {
    "enable-nsa-prefill-context-parallel": _PREFILL_CP,
    "enable-dsa-prefill-context-parallel": _PREFILL_CP,
    "enable-prefill-context-parallel": _PREFILL_CP,
    "nsa-prefill-cp-mode": _CP_STRATEGY,
    "dsa-prefill-cp-mode": _CP_STRATEGY,
    "nsa-prefill-backend": "set dsa-prefill-backend",
    "nsa-decode-backend": "set dsa-decode-backend",
    "disable-piecewise-cuda-graph": "set cuda-graph-backend-prefill: disabled",
    "enable-piecewise-cuda-graph": _FULL_PREFILL,
    "enforce-piecewise-cuda-graph": _FULL_PREFILL,
    "enable-breakable-cuda-graph": "set cuda-graph-backend-prefill: breakable",
    "piecewise-cuda-graph-tokens": "set cuda-graph-bs-prefill",
    "piecewise-cuda-graph-max-tokens": "set cuda-graph-max-bs-prefill",
    "cuda-graph-max-bs": "set cuda-graph-max-bs-decode",
    "cuda-graph-bs": "set cuda-graph-bs-decode",
    "stream-output": "set incremental-streaming-output: true",
    "mamba-scheduler-strategy": "set mamba-radix-cache-strategy",
    "speculative-dflash-draft-window-size": "set speculative-draft-window-size",
    "enable-gdn-replayssm-spec": "set enable-linear-replayssm-spec: true",
    "enable-expert-distribution-metrics": "set expert-balancedness-report-mode: prometheus",
    "collect-tokens-histogram": "leave it out: the histograms come with the metrics, which are on",
    "prefill-round-robin-balance": "leave it out: it had no effect any more",
}
"""Spellings of earlier SGLang releases, each with this one's. Source: the registrations of retired flags in earlier
versions of srt/server_args.py; none of them is known to the parser of 0.5.23."""


def _flag(line: Mapping[str, Any]) -> FlagSpec:
    switch = line["type"] == "bool"
    return FlagSpec(
        name=line["name"],
        aliases=tuple(line.get("aliases", ())),
        type=line["type"],
        choices=tuple(line["choices"]) if "choices" in line else None,
        default=line.get("default"),
        nargs=line.get("nargs"),
        negatable=line.get("negatable", False),
        switch=switch,
        roles=frozenset(_ROLES[letter] for letter in line.get("roles", _EVERYWHERE_ELSE)),
        owner=REFUSED_IN_ARGS.get(line["name"]),
    )


@functools.cache
def _release() -> Mapping[str, FlagSpec]:
    text = resources.files(__package__).joinpath("flags.jsonl").read_text(encoding="utf-8")
    lines = json.loads(f"[{','.join(text.splitlines())}]")
    return {line["name"]: _flag(line) for line in lines}


def _before_release(version: str) -> Catalogue:
    flags = dict(_release())
    flags[_REPLAY] = replace(flags[_REPLAY], negatable=False, default=False)
    removed = {**REMOVED, f"no-{_REPLAY}": "leave it out: replay is off unless it is asked for"}
    return Catalogue(version, flags, removed)


@functools.cache
def catalogue(version: str) -> Catalogue:
    """The flags of a known SGLang version.

    Raises:
        ValueError: No such version; a programming error, as user input passes `version.resolve` first.
    """
    if version not in KNOWN:
        raise ValueError(f"no flags of SGLang {version}: known are {', '.join(KNOWN)}")
    return Catalogue(version, _release(), REMOVED) if version == _RELEASE else _before_release(version)


@functools.cache
def encoder_catalogue(version: str) -> Catalogue:
    """The flags of a known version that its encoder server reads; `catalogue` has the errors.

    The others do nothing there, and a user who sets one expects that it does.
    """
    every = catalogue(version)
    read = {name: flag for name, flag in every.flags.items() if "encode" in flag.roles or flag.owner is not None}
    return Catalogue(version, read, every.removed, elsewhere=frozenset(every.flags) - frozenset(read))
