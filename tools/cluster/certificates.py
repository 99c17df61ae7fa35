"""Keys and certificates of the cluster, drawn once per state folder with the openssl command.

Kubernetes reads who a client is from its certificate: the common name is the user, the organisations are its groups.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools import program
from tools.cluster.layout import API_SERVICE_ADDRESS, CERTIFICATES, CLUSTER_DOMAIN, HOST_ADDRESS, NODE, NODE_ADDRESS
from tools.program import Unfit

DAYS = "3650"
_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
    "localhost",
    NODE,
)
_ADDRESSES = (NODE_ADDRESS, API_SERVICE_ADDRESS, HOST_ADDRESS, "127.0.0.1")


@dataclass(frozen=True)
class Identity:
    """One certificate: file name, user, groups, and whether servers present it too."""

    name: str
    user: str
    group: str | None = None
    serves: bool = False
    authority: str = "ca"


IDENTITIES = (
    Identity("server", NODE, serves=True),
    Identity("admin", "epd-admin", "system:masters"),
    Identity("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
    Identity("controller-manager", "system:kube-controller-manager"),
    Identity("scheduler", "system:kube-scheduler"),
    Identity("kubelet", f"system:node:{NODE}", "system:nodes"),
    Identity("proxy", "system:kube-proxy"),
    Identity("dns", "epd:dns"),
    Identity("kwok", "epd:kwok"),
    Identity("front-proxy", "front-proxy-client", authority="front-proxy-ca"),
)
AUTHORITIES = ("ca", "front-proxy-ca")
SIGNING_KEY = "service-accounts"


def certificate(name: str) -> Path:
    """Return the path of a certificate (PEM)."""
    return CERTIFICATES / f"{name}.crt"


def key(name: str) -> Path:
    """Return the path of a private key (PEM, mode 0600)."""
    return CERTIFICATES / f"{name}.key"


def ensure() -> None:
    """Draw every key and certificate that is missing; what is there stays.

    Raises:
        Unfit: openssl failed.
    """
    CERTIFICATES.mkdir(parents=True, exist_ok=True)
    CERTIFICATES.chmod(0o700)
    fresh_authority = False
    for name in AUTHORITIES:
        if not (certificate(name).exists() and key(name).exists()):
            fresh_authority = True
            _key(name)
            _openssl(
                "req",
                "-x509",
                "-new",
                "-key",
                str(key(name)),
                "-days",
                DAYS,
                "-subj",
                f"/CN=epd-{name}",
                "-addext",
                "keyUsage=critical,keyCertSign,digitalSignature,cRLSign",
                "-out",
                str(certificate(name)),
            )
    if not key(SIGNING_KEY).exists():
        _key(SIGNING_KEY)
        _openssl("pkey", "-in", str(key(SIGNING_KEY)), "-pubout", "-out", str(certificate(SIGNING_KEY)))
    for wanted in IDENTITIES:
        if fresh_authority or not (certificate(wanted.name).exists() and key(wanted.name).exists()):
            _issue(wanted)


def identity() -> str:
    """Return a hash over all certificates: another value means that whoever loaded the old ones must load them anew."""
    digest = hashlib.sha256()
    for file in sorted(CERTIFICATES.glob("*.crt")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def subject(wanted: Identity) -> str:
    """Return the subject in openssl's notation."""
    return (f"/O={wanted.group}" if wanted.group else "") + f"/CN={wanted.user}"


def extensions(wanted: Identity) -> str:
    """Return the certificate's extensions in openssl's notation."""
    lines = ["basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature"]
    lines.append("extendedKeyUsage=" + ("serverAuth,clientAuth" if wanted.serves else "clientAuth"))
    if wanted.serves:
        lines.append("subjectAltName=" + ",".join([f"DNS:{n}" for n in _NAMES] + [f"IP:{a}" for a in _ADDRESSES]))
    return "\n".join(lines) + "\n"


def _issue(wanted: Identity) -> None:
    _key(wanted.name)
    authority = wanted.authority
    with tempfile.TemporaryDirectory(dir=CERTIFICATES) as scratch:
        request, described = Path(scratch) / "request", Path(scratch) / "extensions"
        described.write_text(extensions(wanted), encoding="ascii")
        _openssl("req", "-new", "-key", str(key(wanted.name)), "-subj", subject(wanted), "-out", str(request))
        _openssl(
            "x509",
            "-req",
            "-in",
            str(request),
            "-CA",
            str(certificate(authority)),
            "-CAkey",
            str(key(authority)),
            "-set_serial",
            f"0x{Path('/proc/sys/kernel/random/uuid').read_text(encoding='ascii')[:8]}",
            "-days",
            DAYS,
            "-sha256",
            "-extfile",
            str(described),
            "-out",
            str(certificate(wanted.name)),
        )


def _key(name: str) -> None:
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key(name)))
    key(name).chmod(0o600)


def _openssl(*arguments: str) -> None:
    done = program.run(["openssl", *arguments])
    if done.returncode:
        raise Unfit(f"openssl {' '.join(arguments)} failed:\n{done.stderr.strip()}")
