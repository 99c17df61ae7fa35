"""The router Deployment: smg in PD mode, and the registrar that keeps its list of workers true.

The control key that protects the list never leaves the pod: an init container draws it into memory, and only the two
containers beside each other mount it. The registrar alone carries a service account token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import names
from epd_operator.api.quantity import stored
from epd_operator.plan.objects import security
from epd_operator.plan.revision import single_worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.plan.render_context import RenderContext

CONTAINER = "router"
_CONTROL_VOLUME = "epd-control"
_CONTROL_PATH = "/control"
_CONTROL_KEY = f"{_CONTROL_PATH}/key"
_TOKEN_VOLUME = "epd-token"  # noqa: S105 - the name of a volume
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - where clients look for one
_API_KEY_VOLUME = "epd-api-key"
_API_KEY_PATH = "/api-key"

PRE_STOP_SECONDS: Final = 7
"""Time for endpoints and load balancers to forget a pod before it stops accepting."""
_EXIT_MARGIN_SECONDS: Final = 15
_LARGEST_BODY_BYTES: Final = 32 << 20
"""What the Reference engine accepts. The router's own limit, 512 MiB, is its whole memory: one such body ends it."""


def deployment(context: RenderContext, template: Mapping[str, Any]) -> dict[str, Any]:
    """The router Deployment around a pod template, rendered or stored."""
    return context.revised(
        ("apps/v1", "Deployment"),
        names.router(context.name),
        names.ROUTER,
        spec={
            "replicas": context.effective.router.replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": names.selector(context.name, names.ROUTER)},
            # A router needs no accelerator: the new one is ready before the old one goes.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": dict(template),
        },
    )


def pod_template(context: RenderContext) -> dict[str, Any]:
    """The router's pod template, as this release renders it."""
    image = context.effective.router.image or context.settings.router_image
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(context.name, names.ROUTER)},
    }
    return {
        "metadata": {
            "labels": context.pod_labels(names.ROUTER),
            "annotations": {"kubectl.kubernetes.io/default-container": CONTAINER},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "serviceAccountName": names.router(context.name),
            "securityContext": security.pod_security(),
            "terminationGracePeriodSeconds": PRE_STOP_SECONDS
            + context.effective.longest_grace_seconds
            + _EXIT_MARGIN_SECONDS,
            "topologySpreadConstraints": [spread],
            "initContainers": [_draw_key(image)],
            "containers": [_router(context, image), _registrar(context, image)],
            "volumes": _volumes(context),
        },
    }


def flags(context: RenderContext) -> list[str]:
    """The command line of `smg launch`."""
    router = context.effective.router
    values: dict[str, str | int] = {
        "host": "0.0.0.0",
        "port": names.CLIENT_PORT,
        "prefill-policy": router.prefill_policy,
        "decode-policy": router.decode_policy,
        "prometheus-host": "0.0.0.0",
        "prometheus-port": names.ROUTER_METRICS_PORT,
        "max-payload-size": _LARGEST_BODY_BYTES,
        "request-timeout-secs": router.request_timeout_seconds,
        # Not shorter than the engines': a stream that they would finish is not cut on its way.
        "shutdown-grace-period-secs": context.effective.longest_grace_seconds,
        # The router's own defaults find a dead worker after three minutes and a new one after half a minute.
        "health-check-interval-secs": 2,
        "health-check-timeout-secs": 5,
        "health-failure-threshold": 2,
        "health-success-threshold": 1,
        "worker-startup-check-interval": 1,
        # The registrar registers pods that are Ready, and tries again. A registration that outlived its pod would
        # reach the pod that gets the address next.
        "worker-startup-timeout-secs": 10,
        # Below the keep-alive of the engines (5 s), or a request is sent into a connection that closes.
        "upstream-pool-idle-timeout-secs": 3,
        "retry-max-retries": _attempts(single=single_worker(context.effective)),
        # A killed decode stays listed for about a second, and as the least loaded it draws every attempt made in that
        # time: the third one comes after 1.2 s.
        "retry-initial-backoff-ms": 300,
        "retry-backoff-multiplier": 3,
    }
    if router.max_concurrent_requests:
        values["max-concurrent-requests"] = router.max_concurrent_requests
    arguments = [argument for flag, value in values.items() for argument in (f"--{flag}", str(value))]
    # The breaker counts answers, also those that are right: while no encoder is left, the 503s to image requests would
    # shut every prefill out, and text with them. Lost workers are found by the health check and by the registrar.
    switches = ["--disable-circuit-breaker"]
    if "power_of_two" in {router.prefill_policy, router.decode_policy}:
        # Without it the router counts the workers it starts with, and refuses this policy for want of two.
        switches.append("--enable-igw")
    return ["--pd-disaggregation", *arguments, *switches]


def _attempts(*, single: bool) -> int:
    """How often a request is tried in all: a second try mends a broken connection, a third may meet another worker."""
    return 2 if single else 3


def _draw_key(image: str) -> dict[str, Any]:
    return {
        "name": "draw-key",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["epd-registrar", "draw-key", _CONTROL_KEY],
        "resources": _resources("10m", "64Mi"),
        "securityContext": security.container_security(),
        "volumeMounts": [{"name": _CONTROL_VOLUME, "mountPath": _CONTROL_PATH}],
    }


def _router(context: RenderContext, image: str) -> dict[str, Any]:
    router = context.effective.router
    command = ["epd-registrar", "route", "--control-key-file", _CONTROL_KEY]
    mounts = [security.scratch_mount(), _control_mount()]
    if router.api_key is not None:
        command += ["--api-key-file", f"{_API_KEY_PATH}/key"]
        mounts.append({"name": _API_KEY_VOLUME, "mountPath": _API_KEY_PATH, "readOnly": True})
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "args": ["--", *flags(context)],
        "env": [{"name": "HOME", "value": security.SCRATCH_PATH}],
        "ports": [_port("http", names.CLIENT_PORT), _port("metrics", names.ROUTER_METRICS_PORT)],
        "resources": _resources(router.cpu, router.memory),
        "startupProbe": _probe("/health", "http", period=1, failures=60),
        # Not /readiness: without workers it would take the router out of its Service, and clients would see refused
        # connections where the router has a clear 503 for them.
        "readinessProbe": _probe("/health", "http", period=2, failures=3),
        "livenessProbe": _probe("/liveness", "http", period=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "securityContext": security.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _registrar(context: RenderContext, image: str) -> dict[str, Any]:
    arguments = {
        "namespace": context.namespace,
        "selector": f"{names.LABEL_INSTANCE}={context.name}",
        "router": f"http://127.0.0.1:{names.CLIENT_PORT}",
        "control-key-file": _CONTROL_KEY,
        "encoder-port": names.ENCODER_PORT,
        "listen": f"0.0.0.0:{names.REGISTRAR_PORT}",
    }
    return {
        "name": "registrar",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["epd-registrar"],
        "args": [argument for flag, value in arguments.items() for argument in (f"--{flag}", str(value))],
        "env": [
            {"name": "HOME", "value": security.SCRATCH_PATH},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "ports": [_port("state", names.REGISTRAR_PORT)],
        "resources": _resources("50m", "192Mi"),
        # Ready once the router knows the pods that were there before it: a new router must not answer 503 beside an
        # old one that knows them.
        "readinessProbe": _probe("/readyz", "state", period=2, failures=3),
        "livenessProbe": _probe("/healthz", "state", period=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "securityContext": security.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            security.scratch_mount(),
            _control_mount(),
            {"name": _TOKEN_VOLUME, "mountPath": _TOKEN_PATH, "readOnly": True},
        ],
    }


def _volumes(context: RenderContext) -> list[dict[str, Any]]:
    volumes = [
        security.scratch_volume(),
        {"name": _CONTROL_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {
            "name": _TOKEN_VOLUME,
            "projected": {
                "defaultMode": 0o440,
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {
                        "downwardAPI": {
                            "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                        }
                    },
                ],
            },
        },
    ]
    secret = context.effective.router.api_key
    if secret is not None:
        items = [{"key": secret.key, "path": "key"}]
        volumes.append(
            {
                "name": _API_KEY_VOLUME,
                "secret": {"secretName": secret.name, "items": items, "defaultMode": 0o440},
            }
        )
    return volumes


def _control_mount() -> dict[str, Any]:
    return {"name": _CONTROL_VOLUME, "mountPath": _CONTROL_PATH, "readOnly": True}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _resources(cpu: str, memory: str) -> dict[str, Any]:
    memory = stored(memory)
    return {"requests": {"cpu": stored(cpu), "memory": memory}, "limits": {"memory": memory}}


def _probe(path: str, port: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
