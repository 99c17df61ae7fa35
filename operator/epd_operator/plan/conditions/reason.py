"""The closed list of condition reasons: what each one means to the reader of `kubectl describe`."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self


class Reason(StrEnum):
    """A reason of a condition; `doc` is the sentence that the reference page prints."""

    doc: str

    def __new__(cls, value: str, doc: str) -> Self:
        """Make the member a string with its explanation beside it."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.doc = doc
        return member

    ACCEPTED = "Accepted", "The spec passed every rule of this engine version."
    RULES_APPROXIMATE = (
        "RulesApproximate",
        "The engine version has no rules of its own; the spec passed those of the nearest lower release.",
    )
    INVALID_SPEC = "InvalidSpec", "The spec breaks a rule; the message names each field. What ran before keeps running."
    UNKNOWN_ENGINE_VERSION = "UnknownEngineVersion", "No profile knows this engine version; the message lists them."

    SERVING = "Serving", "A ready router has at least one routable prefill and decode of one compatibility key."
    NO_ROUTABLE_PAIR = "NoRoutablePair", "The router has no routable prefill and decode of one compatibility key."
    ROUTER_NOT_REPORTING = (
        "RouterNotReporting",
        "Router pods are ready, but no registrar has answered the operator yet.",
    )
    SCALED_TO_ZERO = "ScaledToZero", "The spec asks for no pod of a part."

    AT_DESIRED = "AtDesired", "The part has its desired count of ready pods at the desired revision."
    CREATING = "Creating", "What makes the part's pods does not exist yet."
    SCALING = "Scaling", "What makes the part's pods has another size or revision than the spec asks for."
    STARTING = "Starting", "Pods run and are not ready yet, for instance while they load weights."
    UNSCHEDULABLE = "Unschedulable", "No node can take a pod; the message is the scheduler's."
    IMAGE_PULL_FAILED = "ImagePullFailed", "A node cannot pull an image of a pod."
    CONTAINER_NOT_CREATED = "ContainerNotCreated", "A node cannot create a container: a missing Secret, a bad mount."
    CRASH_LOOPING = (
        "CrashLooping",
        "A container exited and is restarted; the message has its exit code and last line.",
    )
    WORKER_REFUSED = "WorkerRefused", "A registrar does not admit a ready pod; the message is the registrar's."
    NOT_ROUTABLE = "NotRoutable", "A pod is ready, and the router sends it nothing; the message says why."
    ENCODER_NOT_REGISTERED = "EncoderNotRegistered", "An encoder is missing from the list of a prefill pod."

    REPLAYING = "Replaying", "Prefill pods run bounded replay, as the spec asks; the message says of which half."
    TURNED_OFF = "TurnedOff", "The spec turns bounded replay off, so every layer runs on every row."
    ENGINE_DOES_NOT_REPLAY = (
        "EngineDoesNotReplay",
        "Replay is asked for, and the engine runs without it; the message has the engine's reason.",
    )
    NO_LONG_PROMPT_YET = (
        "NoLongPromptYet",
        "Prefill pods would replay, and no prompt has come yet on which it makes a difference.",
    )
    NOT_REPORTED = (
        "NotReported",
        "Nobody says whether prefill replays: the engine has no such report, or no pod that could say is routable yet.",
    )

    WARMING = (
        "Warming",
        "A server of the pool of windows started empty: until the time in the message, some turns are replayed.",
    )
    DEGRADED = (
        "Degraded",
        "The pool of windows is up, and prefill pods have long been unable to use it; the message says which and why.",
    )

    QUOTA_EXCEEDED = "QuotaExceeded", "A ResourceQuota refuses an object or a pod."
    FORBIDDEN = "Forbidden", "The API server forbids an object or a pod: rights, admission or pod security."
    APPLY_REJECTED = "ApplyRejected", "The API server refuses an object for another reason, given in the message."
    APPLY_FAILED = "ApplyFailed", "The API server could not take an object for a passing reason; it is tried again."
    LEADER_WORKER_SET_MISSING = (
        "LeaderWorkerSetMissing",
        "A role spans nodes, and the cluster does not have the API that such roles need; the message says which.",
    )
    NAME_CONFLICT = "NameConflict", "A foreign object has the name of a child; it is left alone."

    PROGRESSING = "Progressing", "The cluster is moving towards the spec."
    REPLACING = (
        "Replacing",
        "A new revision is coming up beside the old one, which serves until the new one is routable.",
    )
    SETTLED = "Settled", "Nothing is left to do."
    NOT_STALLED = "NotStalled", "Nothing needs help from a person."
    ALL_READY = "AllReady", "Everything declared is as declared."


FAULTS: Final = (
    Reason.QUOTA_EXCEEDED,
    Reason.FORBIDDEN,
    Reason.APPLY_REJECTED,
    Reason.CRASH_LOOPING,
    Reason.IMAGE_PULL_FAILED,
    Reason.CONTAINER_NOT_CREATED,
    Reason.UNSCHEDULABLE,
    Reason.WORKER_REFUSED,
    Reason.ENCODER_NOT_REGISTERED,
)
"""Reasons why a part is not ready that are reported before those that time may cure."""


def reason_of_rule(rule_id: str) -> str:
    """The reason of a spec that a rule refuses: the rule's id, spelled as Kubernetes wants reasons.

    The reference page of rules lists them, so the list of reasons stays closed.
    """
    return "".join(part.capitalize() for part in rule_id.split("-"))
