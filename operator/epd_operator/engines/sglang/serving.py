"""What one server offers its clients: HTTP, gRPC, defaults of requests, tokenizers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.base import IS_ENCODER, IS_PD, IS_PREFILL, MODE
from epd_operator.engines.sglang.disaggregation import PREFILL_COMPLETE
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.rules.expression import Opaque, named, number, some, when
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Value

_SOURCE: Final = "SGLang 0.5.23, arg_groups/serving_hook.py"
_VALIDATION: Final = "SGLang 0.5.23, arg_groups/validation_hook.py"
_SSL: Final = "serving_hook.handle_ssl_validation"
_GRPC: Final = "serving_hook.handle_deprecated_args"
_OTHER: Final = "serving_hook.handle_other_validations"
_MEDIA: Final = ("image", "video", "audio")

_KEY: Final = written("ssl-keyfile")
_CERTIFICATE: Final = written("ssl-certfile")
_HAS_KEY: Final = _KEY.given & ~(_KEY == "")
_HAS_CERTIFICATE: Final = _CERTIFICATE.given & ~(_CERTIFICATE == "")
_HTTP2: Final = flag("enable-http2")
_STREAMS: Final = flag("http2-max-concurrent-streams")
_WINDOW: Final = flag("http2-initial-connection-window-size")
_WORKERS: Final = flag("tokenizer-worker-num")

_OLD_GRPC: Final = flag("smg-grpc-mode") | flag("grpc-mode")
GRPC_PORT: Final = named(
    "grpc_port",
    written("grpc-port")
    .otherwise(number(env("SGLANG_GRPC_PORT")))
    .otherwise(when(_OLD_GRPC, flag("port") + 10000, None)),
    written("grpc-port"),
    env("SGLANG_GRPC_PORT"),
    written("port"),
)
_GRPC_THREADS: Final = number(env("SGLANG_GRPC_WORKER_THREADS"))
_NATIVE_GRPC: Final = GRPC_PORT.given & ~_OLD_GRPC
_SIDECAR: Final = written("sidecar")

_ATTEMPTS: Final = named(
    "optimistic_prefill_attempts_asked",
    when(
        PREFILL_COMPLETE & IS_PREFILL & (flag("optimistic-prefill-attempts") == 0),
        1,
        flag("optimistic-prefill-attempts"),
    ),
    written("optimistic-prefill-attempts"),
)
_STORAGE: Final = written("hicache-storage-backend")
_POLICY: Final = flag("hicache-write-policy")
_OPTIMISTIC_CACHE: Final = (~_STORAGE.given & _POLICY.isin(("write_back", "write_through"))) | (
    _STORAGE.given & (flag("hicache-host-memory-mode") == "buffer_only") & _POLICY.isin(("write_through", "write_back"))
)
OPTIMISTIC_PREFILL_ATTEMPTS: Final = named(
    "optimistic_prefill_attempts",
    when(
        IS_PREFILL
        & (_ATTEMPTS > 0)
        & ((flag("pp-size") > 1) | (flag("enable-hierarchical-cache") & ~_OPTIMISTIC_CACHE)),
        0,
        _ATTEMPTS,
    ),
    written("optimistic-prefill-attempts"),
)


def _read(text: Value) -> Any:
    try:
        return json.loads(str(text)) if text is not None else None
    except (ValueError, RecursionError):
        return None


def _inner(text: Value) -> Any:
    """A JSON setting that may hold JSON once more, inside a string.

    Raises:
        ValueError: The string holds no JSON.
    """
    outer = _read(text)
    return json.loads(outer) if isinstance(outer, str) and outer else outer


def _request_fault(template: Value, limits: Value, sampling: Value) -> str | None:
    """Which of three JSON settings for requests the engine cannot use, and why; None when it can use all."""
    if template is not None and not isinstance(_read(template), dict | None):
        return "default-chat-template-kwargs must hold a JSON object"
    try:
        allowed = _inner(limits)
    except ValueError:
        return "limit-mm-data-per-request must hold a JSON object"
    if isinstance(allowed, dict) and (unknown := [kind for kind in allowed if kind not in _MEDIA]):
        return f"limit-mm-data-per-request knows {', '.join(_MEDIA)}, not {unknown[0]}"
    try:
        defaults = _inner(sampling)
    except ValueError:
        defaults = True
    if defaults and not isinstance(defaults, dict | list | str):
        return "preferred-sampling-params must hold a JSON object"
    return "preferred-sampling-params cannot hold watermark" if defaults and "watermark" in defaults else None


_REQUEST_FAULT: Final = Opaque(
    "whether JSON settings for requests can be used",
    _request_fault,
    (
        written("default-chat-template-kwargs"),
        written("limit-mm-data-per-request"),
        written("preferred-sampling-params"),
    ),
    "str",
)
_HTTP: Final = (
    Rule(
        id="ssl-files-together",
        when=some(
            _HAS_KEY & ~_HAS_CERTIFICATE,
            _HAS_CERTIFICATE & ~_HAS_KEY,
            ~_HAS_CERTIFICATE
            & ~_HAS_KEY
            & some(
                written("ssl-ca-certs").given & ~(written("ssl-ca-certs") == ""),
                written("ssl-keyfile-password").given & ~(written("ssl-keyfile-password") == ""),
                flag("enable-ssl-refresh"),
            ),
            flag("enable-ssl-refresh") & _HTTP2,
        ),
        sides=(_KEY, _CERTIFICATE, written("ssl-ca-certs"), written("enable-ssl-refresh")),
        says="TLS needs both ssl-keyfile and ssl-certfile before any other TLS flag; refreshing them does not work "
        "with HTTP/2",
        fix="give both files, or no ssl flag at all",
        source=_SOURCE,
        decided_by=_SSL,
        roles=ROLES,
    ),
    Rule(
        id="http-workers-reuseport",
        when=flag("enable-http-worker-reuseport") & ((_WORKERS == 1) | _HTTP2),
        sides=(written("enable-http-worker-reuseport"), written("tokenizer-worker-num"), written("enable-http2")),
        says="sharing the port is for several tokenizer workers and HTTP/1",
        fix="set tokenizer-worker-num to 2 or more and remove enable-http2, or remove enable-http-worker-reuseport",
        source=_SOURCE,
        decided_by=_SSL,
        roles=ROLES,
    ),
    Rule(
        id="http2-server",
        when=_HTTP2,
        sides=(written("enable-http2"),),
        says="HTTP/2 needs the Python package granian, which a plain installation of SGLang lacks",
        fix="remove enable-http2, or use an image with granian",
        source=_SOURCE,
        decided_by=_SSL,
        roles=ROLES,
        overridable=True,
    ),
    Rule(
        id="http2-ranges",
        when=_HTTP2 & some(_STREAMS <= 0, _STREAMS >= 2**32, _WINDOW < 1024, _WINDOW >= 2**31),
        sides=(written("http2-max-concurrent-streams"), written("http2-initial-connection-window-size")),
        says="HTTP/2 streams lie between 1 and 4294967295, the connection window between 1024 and 2147483647",
        fix="choose numbers in these ranges, or leave both out",
        source=_SOURCE,
        decided_by=_SSL,
        roles=ROLES,
    ),
    Rule(
        id="grpc-numbers",
        when=some(
            flag("grpc-response-timeout-secs") <= 0,
            GRPC_PORT < 1,
            GRPC_PORT > 65535,
            GRPC_PORT.given & (_GRPC_THREADS < 1),
        ),
        sides=(GRPC_PORT, written("grpc-response-timeout-secs"), env("SGLANG_GRPC_WORKER_THREADS")),
        says="the gRPC port lies between 1 and 65535 (--port plus 10000 in the old gRPC mode), and its timeout and "
        "worker "
        "threads are at least 1",
        fix="choose numbers in these ranges, or leave them out",
        source=_SOURCE,
        decided_by=_GRPC,
        roles=ROLES,
    ),
    Rule(
        id="grpc-features",
        when=_NATIVE_GRPC
        & some(
            flag("use-ray"),
            IS_ENCODER,
            _WORKERS > 1,
            written("api-key").given & ~(written("api-key") == ""),
            written("admin-api-key").given & ~(written("admin-api-key") == ""),
        ),
        sides=(GRPC_PORT, written("tokenizer-worker-num"), written("use-ray")),
        says="a gRPC port excludes Ray, encoder-only servers, several tokenizer workers and API keys, which it "
        "bypasses",
        fix="remove grpc-port and SGLANG_GRPC_PORT, or what they exclude",
        source=_SOURCE,
        decided_by=_GRPC,
        roles=ROLES,
    ),
    Rule(
        id="sidecar-needs-grpc",
        when=some(
            written("sidecar-args").given & ~_SIDECAR.given,
            _SIDECAR.given & ((_SIDECAR == "") | _OLD_GRPC | ~GRPC_PORT.given),
        ),
        sides=(_SIDECAR, GRPC_PORT, written("sidecar-args")),
        says="a sidecar is named, and reached through the native gRPC port",
        fix="set sidecar and grpc-port, without the old gRPC mode; or remove sidecar and sidecar-args",
        source=_SOURCE,
        decided_by=_GRPC,
        roles=ROLES,
    ),
    Rule(
        id="grpc-port-differs",
        when=_NATIVE_GRPC & (flag("port") == GRPC_PORT),
        sides=(GRPC_PORT, written("port")),
        says="HTTP and gRPC cannot listen on one port",
        fix="set grpc-port to another port than {port}",
        source=_VALIDATION,
        decided_by="validation_hook.check_server_args",
        shows={"port": flag("port")},
    ),
)

_REQUESTS: Final = (
    Rule(
        id="request-settings",
        when=_REQUEST_FAULT.given,
        sides=(
            written("default-chat-template-kwargs"),
            written("limit-mm-data-per-request"),
            written("preferred-sampling-params"),
        ),
        says="{fault}",
        fix="correct that flag or leave it out",
        source=_SOURCE,
        decided_by=_OTHER,
        roles=ROLES,
        shows={"fault": _REQUEST_FAULT},
    ),
    Rule(
        id="optimistic-prefill-attempts",
        when=PREFILL_COMPLETE & IS_PREFILL & (OPTIMISTIC_PREFILL_ATTEMPTS <= 0),
        sides=(OPTIMISTIC_PREFILL_ATTEMPTS, written("disaggregation-decode-allocation-policy")),
        says="prefill_complete needs at least one optimistic attempt, and this cache or this number leaves none",
        fix="leave optimistic-prefill-attempts out, or disaggregation-decode-allocation-policy at early",
        source=_SOURCE,
        decided_by=_OTHER,
        roles=ROLES,
    ),
    Rule(
        id="optimistic-prefill-dropped",
        when=(_ATTEMPTS > 0) & (OPTIMISTIC_PREFILL_ATTEMPTS == 0),
        sides=(OPTIMISTIC_PREFILL_ATTEMPTS, written("enable-hierarchical-cache"), written("hicache-write-policy")),
        says="the engine drops optimistic prefill, which this hierarchical cache does not support",
        fix="remove optimistic-prefill-attempts, or use a hierarchical cache without storage that writes through or "
        "back",
        source=_SOURCE,
        severity="warning",
    ),
    Rule(
        id="tokenizer-batching-twice",
        when=flag("enable-tokenizer-batch-encode") & flag("enable-dynamic-batch-tokenizer"),
        sides=(written("enable-tokenizer-batch-encode"), written("enable-dynamic-batch-tokenizer")),
        says="the tokenizer batches in one of two ways",
        fix="remove one of enable-tokenizer-batch-encode and enable-dynamic-batch-tokenizer",
        source=_SOURCE,
        decided_by="serving_hook.handle_tokenizer_batching",
        roles=ROLES,
    ),
    Rule(
        id="queue-limit-under-pd",
        when=IS_PD & written("max-queued-requests").given,
        sides=(written("max-queued-requests"), MODE),
        says="prefill and decode servers ignore the limit of queued requests",
        fix="remove max-queued-requests",
        source="SGLang 0.5.23, managers/scheduler.py",
        severity="warning",
    ),
)

RULES: Final = (*_HTTP, *_REQUESTS)
RESOLVED: Final = (GRPC_PORT, OPTIMISTIC_PREFILL_ATTEMPTS)
