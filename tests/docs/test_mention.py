"""What stands in backticks exists."""

from __future__ import annotations

from typing import Final

import pytest

from tools.docs import mention
from tools.docs.page import Page

ELSEWHERE: Final = mention.Elsewhere(
    files=frozenset(
        {
            "*.cdx.json",  # what a release makes
            ".pre-commit-config.yaml",  # of the reader's own repository
            ".state/cluster/audit.jsonl",  # there while the cluster is up
            "FAST25-release/traces/conversation_trace.jsonl",  # of kvcache-ai/Mooncake
            "config.json",  # of a checkpoint
        }
    ),
    words=frozenset(
        {
            "DT_NEEDED",  # of ELF files
            "IPC_LOCK",  # a capability of Linux
            "LimitMEMLOCK",  # systemd's
            "ServerSideApply",  # Argo CD's
            "SkipDryRunOnMissingResource",  # Argo CD's
            "dependsOn",  # Flux's
            "device_ownership_from_security_context",  # containerd's
            "dot_scaled",  # Triton's
            "pre-commit-config",  # pre-commit's
            "sync-options",  # Argo CD's
            "uninstall",  # Helm's
        }
    ),
)
"""What is not ours. An entry that no page names any more must go."""


def test_files_and_modules_exist(every: dict[str, Page]) -> None:
    assert [fault for page in every.values() for fault in mention.files(page, ELSEWHERE)] == []


def test_words_are_those_of_the_code(written: list[Page]) -> None:
    assert [fault for page in written for fault in mention.words(page, ELSEWHERE)] == []


def test_no_exception_outlives_its_reason(every: dict[str, Page]) -> None:
    codes = " ".join(text for page in every.values() for _, text in page.codes)
    assert [name for name in ELSEWHERE.files | ELSEWHERE.words if name not in codes] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`docs/generate.py` `rules/fold.py` `machine.py` `docs/adr` `manifests/install/` `oracle*.py`", None),
        ("`epd_operator.runtime.permissions` `epd_kernels.dispatch.load`", None),
        ("`docs/adr/NNNN-title.md` `<name>/x.py` `a/b` `application/json`", None),
        ("`docs/generator.py`", "docs/generator.py does not exist"),
        ("`rules/unfold.py`", "rules/unfold.py does not exist"),
        ("`tests/dokumente/`", "tests/dokumente/ does not exist"),
        ("`oracel*.py`", "oracel*.py does not exist"),
        ("`epd_operator.runtime.permission`", "there is no module epd_operator.runtime.permission"),
        ("`epd_kernels.dispatch.unload`", "there is no module epd_kernels.dispatch.unload"),
    ],
)
def test_a_wrong_file_is_found(text: str, fault: str | None) -> None:
    actual = [line.split(": ", 1)[1] for line in mention.files(Page("page.md", text), ELSEWHERE)]
    assert actual == ([fault] if fault else [])


def test_a_wrong_word_is_found() -> None:
    text = "`encoderReplay` `swapool_put_total{result}` `encoderRepaly: true` and encoderRepaly\n"
    actual = list(mention.words(Page("page.md", text), ELSEWHERE))
    assert actual == ["page.md:1: 'encoderRepaly' (in 'encoderRepaly: true') stands nowhere in the code"]
