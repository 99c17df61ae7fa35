"""What a server tells about itself: metrics and their buckets, KV events and published load."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.parallel import ATTN_DP_SIZE, DP_SIZE
from epd_operator.rules.expression import Opaque, some
from epd_operator.rules.rule import Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Value

_SOURCE: Final = "SGLang 0.5.23, arg_groups/validation_hook.py"
_EVENTS_SOURCE: Final = "SGLang 0.5.23, disaggregation/kv_events.py"
_CHECK: Final = "validation_hook.check_server_args"
_WILDCARDS: Final = ("*", "0.0.0.0", "::")
_LAST_PORT: Final = 65535
_PUBLISH: Final = written("load-publish-endpoint")
_EVENTS: Final = written("kv-events-config")
_HEADER: Final = flag("tokenizer-metrics-custom-labels-header")


def _bucket_fault(*rules: Value) -> bool:
    """Whether one of two lists of arguments does not describe buckets."""
    return any(not _are_buckets(list(rule)) for rule in rules if isinstance(rule, list | tuple) and rule)


def _are_buckets(buckets: list[Any]) -> bool:
    try:
        match buckets:
            case ["tse", middle, base, count]:
                return float(base) > 1 and int(count) > 0 and float(middle) > 0
            case ["default"]:
                return True
            case ["custom", _, *_]:
                numbers = [float(boundary) for boundary in buckets[1:]]
                return len(set(numbers)) == len(numbers) and all(number >= 0 for number in numbers)
            case _:
                return False
    except ValueError:
        return False


def _tcp(endpoint: Any) -> tuple[str, int] | None:
    """Host and port of a tcp:// endpoint; None when it is none."""
    if not isinstance(endpoint, str) or not endpoint.startswith("tcp://"):
        return None
    host, colon, port = endpoint.removeprefix("tcp://").rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not colon or not bare or bracketed != _is_ipv6(bare):
        return None
    try:
        number = int(port)
    except ValueError:
        return None
    return (bare, number) if 0 < number <= _LAST_PORT else None


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _fits(name: str, value: Any) -> bool:
    """Whether a field of the KV event settings has its type, as leniently as pydantic reads them."""
    match name:
        case "publisher" | "endpoint" | "topic":
            return isinstance(value, str)
        case "replay_endpoint":
            return value is None or isinstance(value, str)
        case "format":
            return value in {"default", "dynamo"}
        case "buffer_steps" | "hwm" | "max_queue_size":
            return _is_whole(value)
        case _:
            return True


def _is_whole(value: Any) -> bool:
    try:
        return isinstance(value, int | float | str) and int(value) == float(value)
    except (ValueError, OverflowError):
        return False


def _publish_fault(endpoint: Value, events: Value, ranks: Value) -> str | None:
    """Why load cannot be published at an endpoint, one port a rank; None when it can or need not be."""
    wanted = endpoint.strip() if isinstance(endpoint, str) else ""
    if not wanted or wanted.lower() == "off" or not isinstance(ranks, int):
        return None
    if not events:
        return "routers learn of it by the KV events, and kv-events-config is not set"
    try:
        config = json.loads(str(events))
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or not all(_fits(name, value) for name, value in config.items()):
        return "kv-events-config is not a JSON object with fields of the right types"
    source = config.get("endpoint", "tcp://*:5557")
    if config.get("publisher", "null") == "null" or not source:
        return "kv-events-config names no publisher (zmq) or no endpoint"
    return _range_fault(wanted, _tcp(source), _tcp(config.get("replay_endpoint")), ranks) if ranks > 0 else None


def _range_fault(wanted: str, events: tuple[str, int] | None, replay: tuple[str, int] | None, ranks: int) -> str | None:
    if wanted.lower() == "auto":
        if events is None or events[0] not in _WILDCARDS:
            return "auto follows the KV events, whose endpoint must then be tcp://*:PORT"
        first = events[1] + ranks
        if replay is not None and _overlap(first, replay[1], ranks):
            first = replay[1] + ranks
    else:
        place = _tcp(wanted)
        if events is None:
            return "the endpoint of the KV events must be tcp://HOST:PORT"
        if place is None or place[0] not in _WILDCARDS:
            return "load-publish-endpoint must be auto, off or tcp://*:PORT"
        first = place[1]
        if any(_overlap(first, other[1], ranks) for other in (events, replay) if other is not None):
            return f"{ranks} ports from {first} overlap those of the KV events or their replay"
    return f"{ranks} ports from {first} run past 65535" if first + ranks - 1 > _LAST_PORT else None


def _overlap(first: int, second: int, ranks: int) -> bool:
    return abs(first - second) < ranks


_PUBLISH_FAULT: Final = Opaque(
    "whether load can be published", _publish_fault, (_PUBLISH, _EVENTS, DP_SIZE * ATTN_DP_SIZE), "str"
)

RULES: Final = (
    Rule(
        id="load-publish-endpoint",
        when=_PUBLISH_FAULT.given,
        sides=(_PUBLISH, _EVENTS),
        says="cannot publish its load: {fault}",
        fix="correct that, or leave load-publish-endpoint out",
        source=_EVENTS_SOURCE,
        decided_by="validation_hook.check_load_publish_args",
        shows={"fault": _PUBLISH_FAULT},
    ),
    Rule(
        id="token-buckets",
        when=Opaque(
            "whether the arguments describe histogram buckets",
            _bucket_fault,
            (written("prompt-tokens-buckets"), written("generation-tokens-buckets")),
            "bool",
            blind=False,
            nullable=False,
        ),
        sides=(written("prompt-tokens-buckets"), written("generation-tokens-buckets")),
        says="histogram buckets are default, or tse with a middle above 0, a base above 1 and a count above 0, or "
        "custom "
        "with distinct numbers that are not negative",
        fix="write the buckets so, or leave both flags out",
        source=_SOURCE,
        decided_by="validation_hook.validate_buckets_rule",
    ),
    Rule(
        id="metric-labels-header",
        when=(_HEADER == "") & written("tokenizer-metrics-allowed-custom-labels").given,
        sides=(written("tokenizer-metrics-custom-labels-header"), written("tokenizer-metrics-allowed-custom-labels")),
        says="labels that requests may set are read from a header, and its name is empty",
        fix="leave tokenizer-metrics-custom-labels-header out",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="metrics-file-folder",
        when=some(flag("export-metrics-to-file") & ~written("export-metrics-to-file-dir").given),
        sides=(written("export-metrics-to-file"), written("export-metrics-to-file-dir")),
        says="metrics are exported to files, and no folder for them is set",
        fix="set export-metrics-to-file-dir",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
)
RESOLVED: Final = ()
