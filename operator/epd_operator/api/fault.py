"""What is wrong with a document: one line per fault, all of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        field: Path as a user writes it, such as `spec.roles.prefill.replicas`.
        value: What stands there; None when nothing does.
        message: The rule and the way out; it may name its fields in full, as the rules of the CRD do.
    """

    field: str
    value: Any
    message: str

    @override
    def __str__(self) -> str:
        if self.message.startswith(("spec.", "metadata.")):
            return self.message
        shown = "" if self.value is None else f" (is {_short(self.value)})"
        return f"{self.field}{shown}: {self.message}"


class SpecError(ValueError):
    """A document that is not a valid DeepSeekV41Deployment.

    Attributes:
        faults: Every fault found, ordered by field.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: (fault.field, fault.message)))
        super().__init__("\n".join(str(fault) for fault in self.faults))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
