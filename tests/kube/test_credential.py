from __future__ import annotations

import json
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from epd_operator.kube import credential as module
from epd_operator.kube.credential import REFRESH_SECONDS, Credential, CredentialError, load_configuration

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def kubeconfig(path: Path, user: dict[str, Any], server: str = "http://127.0.0.1:1", **cluster: Any) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path


async def test_a_token_in_the_kubeconfig(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "abc"})
    actual = Credential(lambda: load_configuration(str(path)))
    assert await actual.header() == "Bearer abc"
    server = await actual.server()
    assert (server.url, server.tls, server.proxy) == ("http://127.0.0.1:1", None, None)


async def test_an_exec_plugin_is_asked_again_when_its_token_has_expired(tmp_path: Path) -> None:
    plugin, count = tmp_path / "plugin", tmp_path / "count"
    count.write_text("")
    plugin.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "count.write_text(count.read_text() + 'x')\n"
        "status = {'token': 'run-' + str(len(count.read_text())), 'expirationTimestamp': '2020-01-01T00:00:00Z'}\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': status}))\n"
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    path = kubeconfig(tmp_path / "config", user)
    clock = Clock()
    actual = Credential(lambda: load_configuration(str(path)), clock)
    first = await actual.header()
    assert first is not None
    assert first.startswith("Bearer run-")
    assert await actual.header() == first
    clock.now += REFRESH_SECONDS + 1
    second = await actual.header()
    assert second is not None
    assert second != first


async def test_a_rotated_service_account_token_is_picked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import incluster_config  # noqa: PLC0415

    (tmp_path / "token").write_text("one")
    (tmp_path / "ca.crt").write_text("not read over http")
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    clock = Clock()
    actual = Credential(load_configuration, clock)
    assert await actual.header() == "bearer one"
    (tmp_path / "token").write_text("two")
    assert await actual.header() == "bearer one"
    # The official package re-reads the file when its own minute is over; make that minute pass.
    configuration = actual._configuration
    hook = configuration.refresh_api_key_hook
    loader = next(c.cell_contents for c in hook.__closure__ if hasattr(c.cell_contents, "token_expires_at"))
    loader.token_expires_at = loader.token_expires_at.replace(year=2020)
    clock.now += REFRESH_SECONDS + 1
    assert await actual.header() == "bearer two"
    (tmp_path / "token").write_text("three")
    await actual.reload()
    assert await actual.header() == "bearer three"


def test_no_cluster_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="Set KUBECONFIG"):
        load_configuration(str(tmp_path / "missing"))


def test_a_wrong_context_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "abc"})
    with pytest.raises(CredentialError, match="other"):
        load_configuration(str(path), "other")


async def test_a_client_certificate_goes_into_the_tls_context(tmp_path: Path) -> None:
    path = kubeconfig(
        tmp_path / "config",
        {"client-certificate-data": "eA==", "client-key-data": "eA=="},
        server="https://127.0.0.1:1",
        **{"insecure-skip-tls-verify": True, "tls-server-name": "kubernetes", "proxy-url": "http://proxy:3128"},
    )
    actual = Credential(lambda: load_configuration(str(path)))
    with pytest.raises(OSError, match="PEM"):  # the certificate of this test is none
        await actual.server()
    configuration = load_configuration(str(path))
    assert (configuration.tls_server_name, configuration.proxy) == ("kubernetes", "http://proxy:3128")
    assert json.dumps(configuration.api_key) == "{}"


@pytest.mark.parametrize("text", ["{", "a: b: c", "- x"])
def test_a_kubeconfig_that_is_none_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    broken = tmp_path / "config"
    broken.write_text(text)
    with pytest.raises(CredentialError, match="Set KUBECONFIG") as refused:
        load_configuration(str(broken))
    assert "\n" not in str(refused.value)
