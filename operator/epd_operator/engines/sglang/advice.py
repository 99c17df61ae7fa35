"""What the engine accepts and runs, and what was seen to go wrong with it: warnings, each with its report."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.flags import flag, written
from epd_operator.rules.expression import every
from epd_operator.rules.rule import Rule

_CP: Final = flag("enable-prefill-cp")
RULES: Final = (
    Rule(
        id="prefill-cp-images",
        when=every(_CP, ~flag("language-model-only")),
        sides=(written("enable-prefill-cp"), written("language-model-only")),
        says="a prefill server with context parallelism refuses every request with an image",
        fix="set language-model-only on prefill and decode to serve text only, or remove enable-prefill-cp",
        source="sgl-project/sglang#40161",
        severity="warning",
        roles=("prefill", "aggregated"),
    ),
    Rule(
        id="prefill-cp-chunk",
        when=every(_CP, written("chunked-prefill-size") > 16384),
        sides=(written("chunked-prefill-size"), written("enable-prefill-cp")),
        says="with context parallelism 16384 was seen to work and 32768 to fail",
        fix="lower chunked-prefill-size to 16384, or try the larger one before you rely on it",
        source="sgl-project/sglang#36297",
        severity="warning",
    ),
    Rule(
        id="hicache-prefetch-best-effort",
        when=every(
            flag("enable-hierarchical-cache"),
            written("hicache-storage-backend").given,
            flag("hicache-storage-prefetch-policy") == "best_effort",
        ),
        sides=(written("hicache-storage-prefetch-policy"), written("hicache-storage-backend")),
        says="a request does not wait for what the store holds, so entries go in and hardly ever come out",
        fix="set hicache-storage-prefetch-policy to timeout or wait_complete",
        source="sgl-project/sglang#12092, sgl-project/sglang#18541",
        severity="warning",
    ),
    Rule(
        id="hicache-small-host-tier",
        when=every(
            flag("enable-hierarchical-cache"),
            written("hicache-storage-backend").given,
            flag("hicache-size") > 0,
            flag("hicache-size") < 8,
        ),
        sides=(written("hicache-size"), written("hicache-storage-backend")),
        says="everything from the store passes through the host tier, and one this small holds few prompts at once",
        fix="raise hicache-size (decimal GB a rank)",
        source="sgl-project/sglang#40193",
        severity="warning",
    ),
)
RESOLVED: Final = ()
