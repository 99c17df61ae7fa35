"""The flags that the operator sets on an SGLang pod, as they follow from the fields of a spec.

One table for the rules, the admission policy and the command line of the pods, so that what is judged is what runs.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from epd_operator.api.names import BOOTSTRAP_PORT, ENCODER_PORT, HTTP_PORT
from epd_operator.rules.expression import PLATFORM, ROLE, TRUE, declared, field_of, lift, spec_of, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.expression import Expr

DEFAULT_TRANSFER: Final = "mooncake"
ENCODER_TRANSFER: Final = "zmq_to_tokenizer"
"""How images travel from encoders to prefill: one copy for all ranks, which works with attention data parallelism, and
an encoder's failure is the request's. Source: SGLang 0.5.23, disaggregation/encoder/receiver.py."""

_REPLAY: Final = field_of("decoderReplay", "str")
_MODE: Final = when(ROLE == "prefill", "prefill", when(ROLE == "decode", "decode", None))
_SERVES: Final = ~(ROLE == "encode")
_LEAVES_IMAGES: Final = (ROLE == "prefill") & declared("encode")

OWNED: Final[Mapping[str, Expr]] = MappingProxyType(
    {
        "host": lift("0.0.0.0"),
        "port": lift(HTTP_PORT),
        "enable-metrics": TRUE,
        "model-path": spec_of("model.path", "str"),
        "revision": spec_of("model.revision", "str"),
        "served-model-name": spec_of("model.servedName", "str").otherwise(spec_of("metadata.name", "str")),
        "disaggregation-mode": _MODE,
        "device": when(PLATFORM == "cpu", "cpu", None),
        "encoder-only": ROLE == "encode",
        "language-only": _LEAVES_IMAGES,
        "encoder-transfer-backend": when(_LEAVES_IMAGES | ~_SERVES, ENCODER_TRANSFER, None),
        "encoder-bootstrap-port": when(_LEAVES_IMAGES, ENCODER_PORT, None),
        "disaggregation-transfer-backend": when(
            _SERVES, spec_of("transfer.backend", "str").otherwise(DEFAULT_TRANSFER), None
        ),
        "disaggregation-bootstrap-port": when(
            _SERVES, spec_of("transfer.bootstrapPort", "int").otherwise(BOOTSTRAP_PORT), None
        ),
        "disaggregation-enable-kv-checksum": _SERVES & (spec_of("transfer.checksum", "bool") == True),  # noqa: E712 - an expression
        "enable-decoder-swa-bounded-replay": when(
            (ROLE == "prefill") & (_REPLAY == "On"),
            True,
            when((ROLE == "prefill") & (_REPLAY == "Off"), False, None),
        ),
        "enable-encoder-swa-bounded-replay": (ROLE == "prefill") & (field_of("encoderReplay", "bool") == True),  # noqa: E712
        "nnodes": field_of("nodes", "int").otherwise(1),
    }
)
