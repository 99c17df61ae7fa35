"""Six verbs on a cluster, and the errors they raise.

The tricky idea: kopf and our own code share *one* session, so what must hold for every request (identity, user agent,
metrics, the fence against a former leader's writes) is a middleware of that session and not a habit of the callers.
"""

from epd_operator.kube.client import Cluster, HttpCluster, Object, unfenced
from epd_operator.kube.connection import Connection, LeadershipLost
from epd_operator.kube.credential import Credential, CredentialError, load_configuration
from epd_operator.kube.error import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    StatusError,
    TooManyRequests,
    Transport,
    Unauthorized,
)
from epd_operator.kube.kind import Kind

__all__ = [
    "ApiError",
    "Cluster",
    "Conflict",
    "Connection",
    "Credential",
    "CredentialError",
    "Forbidden",
    "Gone",
    "HttpCluster",
    "Invalid",
    "Kind",
    "LeadershipLost",
    "NotFound",
    "Object",
    "ServerError",
    "StatusError",
    "TooManyRequests",
    "Transport",
    "Unauthorized",
    "load_configuration",
    "unfenced",
]
