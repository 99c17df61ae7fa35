from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from epd_sglang.encode.gate import language_faults


def faults(*, attention_dp: bool = False, **changes: Any) -> list[str]:
    settled = {
        "disaggregation_mode": "prefill", "enable_adaptive_dispatch_to_encoder": False, "tokenizer_worker_num": 1,
        "encoder_transfer_backend": "zmq_to_scheduler", "enable_prefill_cp": False, "attn_cp_size": 1, "pp_size": 1,
        "moe_a2a_backend": "none",
    }  # fmt: skip
    return list(language_faults(SimpleNamespace(**{**settled, **changes}), attention_dp=attention_dp))


def test_what_works_is_accepted() -> None:
    assert faults() == []
    assert faults(disaggregation_mode="null", moe_a2a_backend="megamoe") == []
    assert faults(attention_dp=True, encoder_transfer_backend="zmq_to_tokenizer") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"disaggregation_mode": "decode"}, "belongs on prefill"),
        ({"enable_adaptive_dispatch_to_encoder": True}, "--enable-adaptive-dispatch-to-encoder"),
        ({"tokenizer_worker_num": 2}, "--tokenizer-worker-num is 2"),
        ({"attention_dp": True}, "must be zmq_to_tokenizer, not zmq_to_scheduler"),
        ({"enable_prefill_cp": True}, "context parallelism"),
        ({"attn_cp_size": 2}, "context parallelism"),
        ({"pp_size": 2}, "--pp-size 2"),
        ({"moe_a2a_backend": "deepep"}, "--moe-a2a-backend is deepep"),
    ],
)
def test_what_cannot_work_is_named(changes: dict[str, Any], words: str) -> None:
    (fault,) = faults(**changes)
    assert words in fault


def test_all_faults_come_at_once() -> None:
    assert len(faults(disaggregation_mode="decode", tokenizer_worker_num=3, pp_size=2)) == 3
