"""The command line and the choice of cluster: refusals, before anything is touched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tools.cluster import access, binaries, cli, lifecycle, status
from tools.program import Unfit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep every test away from a cluster that may really run here."""

    def refuse() -> None:
        pytest.fail("a refusal must come before the cluster is touched")

    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("EPD_THROWAWAY_CONTEXT", raising=False)
    monkeypatch.setattr(lifecycle, "up", refuse)
    monkeypatch.setattr(lifecycle, "down", refuse)
    for module in (cli, access):
        monkeypatch.setattr(module, "KUBECONFIG", tmp_path / "ours")
    monkeypatch.setattr(cli, "STATE", tmp_path / "state")
    monkeypatch.setattr(cli, "LOGS", tmp_path / "state" / "logs")
    monkeypatch.setattr(cli, "AUDIT_LOG", tmp_path / "state" / "audit.jsonl")


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "theirs"
    file.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(file))
    return file


def test_down_never_touches_another_cluster(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["down"]) == 2
    text = capsys.readouterr().err
    assert str(theirs) in text
    assert "env -u KUBECONFIG" in text


def test_load_says_where_to_push_instead(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["load", "localhost/x:1"]) == 2
    assert "kind load" in capsys.readouterr().err


def test_down_without_a_cluster_is_done_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["down"]) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_up_reports_a_machine_that_is_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unfit() -> None:
        raise Unfit("no Linux here")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(lifecycle, "up", unfit)
    assert cli.main(["up"]) == 2
    assert "no Linux here" in capsys.readouterr().err


def test_logs_of_an_unknown_component_list_the_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state" / "logs").mkdir(parents=True)
    (tmp_path / "state" / "logs" / "etcd.log").write_text("hello\n")
    assert cli.main(["logs", "kubelet"]) == 2
    assert "etcd" in capsys.readouterr().err


def test_logs_prints_the_last_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state" / "logs").mkdir(parents=True)
    (tmp_path / "state" / "logs" / "etcd.log").write_text("one\ntwo\nthree\n")
    assert cli.main(["logs", "etcd", "-n", "2"]) == 0
    assert capfd.readouterr().out == "two\nthree\n"


def test_status_of_nothing_is_1_and_valid_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "STATE", tmp_path / "absent")
    assert cli.main(["status", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["up"] is False
    assert cli.main(["status"]) == 1
    assert "tools.cluster up" in capsys.readouterr().out


def test_help_shows_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for word in ("up", "down", "status", "load", "logs", "KUBECONFIG", "examples", "exit status"):
        assert word in text


def test_our_own_file_in_kubeconfig_is_the_local_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "ours"))
    assert access.given() is None
    assert access.kubeconfig() == tmp_path / "ours"


def test_the_callers_cluster_wins(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("{}")
    assert access.kubeconfig() == theirs
    assert access.audit_log() is None
    assert access.unavailable() is None


def test_no_cluster_says_how_to_get_one() -> None:
    with pytest.raises(Unfit, match=r"tools\.cluster up"):
        access.kubeconfig()


@pytest.mark.parametrize("value", ["/nonexistent", "/a:/b"])
def test_a_kubeconfig_that_is_no_file_is_refused_not_ignored(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", value)
    with pytest.raises(Unfit, match=value):
        access.given()
    assert value in str(access.unavailable())


def test_only_the_local_cluster_may_be_thrown_away_unasked() -> None:
    access.require_throwaway("epd-local")
    with pytest.raises(Unfit, match="EPD_THROWAWAY_CONTEXT=production"):
        access.require_throwaway("production")


def test_a_context_of_the_same_name_elsewhere_is_not_ours(theirs: Path) -> None:
    assert theirs.exists()
    with pytest.raises(Unfit):
        access.require_throwaway("epd-local")


def test_whoever_names_the_context_may(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert theirs.exists()
    monkeypatch.setenv("EPD_THROWAWAY_CONTEXT", "kind-test")
    access.require_throwaway("kind-test")
    with pytest.raises(Unfit):
        access.require_throwaway("kind-other")


def test_whoever_brings_a_cluster_may_bring_kubectl_too(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert access.kubectl() == [str(kubectl), f"--kubeconfig={theirs}"]


def test_built_programs_win_over_those_on_path(theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert theirs.exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = binaries.folder(binaries.module_of("kubectl"))
    folder.mkdir(parents=True)
    assert access.tool("kubectl") == folder / "kubectl"
