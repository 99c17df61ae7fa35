"""What a user writes, and the CRD generated from it.

The tricky idea: a cross-field rule is *data on the model class* that carries its two forms side by side, the CEL text
that the API server runs and a Python predicate over the raw object. Pydantic stops at the first broken model; the
predicates do not depend on it, so `parse` reports every fault of a document in one go, and the same table fills the
CRD. Tests hold the two forms against each other on a real API server.
"""

from epd_operator.api.deployment import DeepSeekV41Deployment
from epd_operator.api.fault import Fault, SpecError
from epd_operator.api.parser import parse

__all__ = ["DeepSeekV41Deployment", "Fault", "SpecError", "parse"]
