"""Certificates drawn by the real openssl, and the kubeconfigs around them."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.cluster import certificates, kubeconfig

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="draws serial numbers from /proc"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(autouse=True)
def drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "CERTIFICATES", folder)
    certificates.ensure()


def openssl(*arguments: str) -> str:
    return subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=True).stdout


def test_every_certificate_is_signed_by_its_authority() -> None:
    for identity in certificates.IDENTITIES:
        authority = str(certificates.certificate(identity.authority))
        openssl("verify", "-CAfile", authority, str(certificates.certificate(identity.name)))


def test_users_and_groups_are_what_kubernetes_reads() -> None:
    subject = openssl(
        "x509", "-noout", "-subject", "-nameopt", "RFC2253", "-in", str(certificates.certificate("kubelet"))
    )
    assert subject.strip() == "subject=CN=system:node:epd-local,O=system:nodes"


def test_the_server_is_valid_for_every_name_it_is_called_by() -> None:
    server = str(certificates.certificate("server"))
    for address in ("10.244.0.1", "10.96.0.1", "127.0.0.1"):
        assert "does match" in openssl("x509", "-noout", "-checkip", address, "-in", server)
    for name in ("kubernetes.default.svc", "epd-local"):
        assert "does match" in openssl("x509", "-noout", "-checkhost", name, "-in", server)
    assert "NOT match" in openssl("x509", "-noout", "-checkip", "10.0.0.1", "-in", server)


def test_clients_cannot_serve() -> None:
    text = openssl("x509", "-noout", "-ext", "extendedKeyUsage", "-in", str(certificates.certificate("admin")))
    assert "TLS Web Client" in text
    assert "TLS Web Server" not in text


def test_keys_are_for_the_owner_only() -> None:
    for identity in certificates.IDENTITIES:
        assert certificates.key(identity.name).stat().st_mode & 0o077 == 0


def test_what_is_there_stays_and_what_is_lost_is_drawn_again() -> None:
    kept = certificates.certificate("admin").read_bytes()
    certificates.certificate("kwok").unlink()
    certificates.ensure()
    assert certificates.certificate("admin").read_bytes() == kept
    assert certificates.certificate("kwok").exists()


def test_a_new_authority_means_new_certificates() -> None:
    old, identity = certificates.certificate("admin").read_bytes(), certificates.identity()
    certificates.ensure()
    assert certificates.identity() == identity
    certificates.key("ca").unlink()
    certificates.ensure()
    assert certificates.identity() != identity
    assert certificates.certificate("admin").read_bytes() != old
    test_every_certificate_is_signed_by_its_authority()


def test_a_kubeconfig_carries_its_certificates() -> None:
    document = kubeconfig.document("admin")
    assert document["current-context"] == "epd-local"
    user = document["users"][0]["user"]  # type: ignore[index]
    assert base64.b64decode(user["client-certificate-data"]) == certificates.certificate("admin").read_bytes()
    assert base64.b64decode(user["client-key-data"]) == certificates.key("admin").read_bytes()


def test_kubeconfigs_are_for_the_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "CONFIG", tmp_path / "config")
    monkeypatch.setattr(kubeconfig, "KUBECONFIG", tmp_path / "kubeconfig")
    kubeconfig.write()
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o777 == 0o600
    written = sorted(file.name for file in (tmp_path / "config").iterdir())
    assert "kubelet.kubeconfig" in written
    assert not [name for name in written if name.endswith(".new")]
