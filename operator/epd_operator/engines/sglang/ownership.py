"""The flags that the operator sets on an SGLang pod, as they follow from the fields of a spec.

One table for the rules, the admission policy and the command line of the pods, so that what is judged is what runs.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from epd_operator.api.names import BOOTSTRAP_PORT, HTTP_PORT
from epd_operator.rules.expression import ROLE, TRUE, field_of, lift, spec_of, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.expression import Expr

DEFAULT_TRANSFER: Final = "mooncake"

_REPLAY: Final = field_of("decoderReplay", "str")
_MODE: Final = when(ROLE == "prefill", "prefill", when(ROLE == "decode", "decode", None))

OWNED: Final[Mapping[str, Expr]] = MappingProxyType(
    {
        "host": lift("0.0.0.0"),
        "port": lift(HTTP_PORT),
        "enable-metrics": TRUE,
        "model-path": spec_of("model.path", "str"),
        "revision": spec_of("model.revision", "str"),
        "served-model-name": spec_of("model.servedName", "str").otherwise(spec_of("metadata.name", "str")),
        "disaggregation-mode": _MODE,
        "encoder-only": ROLE == "encode",
        "disaggregation-transfer-backend": spec_of("transfer.backend", "str").otherwise(DEFAULT_TRANSFER),
        "disaggregation-bootstrap-port": spec_of("transfer.bootstrapPort", "int").otherwise(BOOTSTRAP_PORT),
        "disaggregation-enable-kv-checksum": spec_of("transfer.checksum", "bool") == True,  # noqa: E712 - an expression
        "enable-decoder-swa-bounded-replay": when(
            (ROLE == "prefill") & (_REPLAY == "On"),
            True,
            when((ROLE == "prefill") & (_REPLAY == "Off"), False, None),
        ),
        "enable-encoder-swa-bounded-replay": (ROLE == "prefill") & (field_of("encoderReplay", "bool") == True),  # noqa: E712
        "nnodes": field_of("nodes", "int").otherwise(1),
    }
)
