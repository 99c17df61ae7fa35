"""The two commits before the release judge by their own rules, line by line as their source states them."""

from __future__ import annotations

import pytest

from epd_operator.engines.validation import validate_command_line
from tools.corpus.prerelease_lines import ALL, BOTH, DSPARK, LINES, OCTOBER, ON, PREFILL, RELEASE, SEPTEMBER


@pytest.mark.parametrize(("flags", "refusing", "platform"), LINES)
@pytest.mark.parametrize("version", ALL)
def test_line_by_version(flags: str, refusing: tuple[str, ...], platform: str, version: str) -> None:
    judged = validate_command_line(version, platform, ["--tp-size", "4", *flags.split()], {})
    assert judged.accepted == (version not in refusing), "\n".join(map(str, judged.errors))


@pytest.mark.parametrize("version", BOTH)
def test_verify_mode_is_an_environment_variable(version: str) -> None:
    line = f"--tp-size 4 {DSPARK} {PREFILL}".split()
    assert validate_command_line(version, "cuda-sm90", line, {}).accepted
    assert not validate_command_line(version, "cuda-sm90", line, {"SGLANG_RAGGED_VERIFY_MODE": "compact"}).accepted


@pytest.mark.parametrize("version", BOTH)
def test_decoder_replay_is_off_unless_asked_for(version: str) -> None:
    name = "enable_decoder_swa_bounded_replay"
    resolved = validate_command_line(version, "cuda-sm90", ["--tp-size", "4"], {}).resolved
    assert not resolved["aggregated"][name]
    asked = validate_command_line(version, "cuda-sm90", ["--tp-size", "4", ON], {}).resolved
    assert asked["aggregated"][name] is True
    assert validate_command_line(RELEASE, "cuda-sm90", ["--tp-size", "4"], {}).resolved["aggregated"][name] is True


def test_what_no_source_states_is_marked_inferred() -> None:
    line = ["--tp-size", "4", "--enable-two-batch-overlap"]
    (stated,) = (f for f in validate_command_line(SEPTEMBER, "cuda-sm90", line, {}).errors if "overlap" in f.rule)
    (inferred,) = (f for f in validate_command_line(OCTOBER, "cuda-sm90", line, {}).errors if "overlap" in f.rule)
    assert not stated.inferred
    assert inferred.inferred
    assert "inferred" in str(inferred)
