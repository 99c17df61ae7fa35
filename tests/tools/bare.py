"""A bare machine: a minimal Debian with Python, the host's Go and a copy of the checkout, entered by chroot."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools import packages, program
from tools.cluster.layout import cache_folder
from tools.images import pip
from tools.images.base import minimal

if TYPE_CHECKING:
    import subprocess

CHECKOUT = Path(__file__).resolve().parents[2]
PREREQUISITES = ("python3", "make", "bash")
"""What a user has of the packages that set-up does not install."""
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".state", "build", "dist", ".*_cache", ".hypothesis", "__pycache__")
OF_THE_HOST = ("/etc/resolv.conf", "/etc/hosts")
"""How names are resolved here."""
PATH = "/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CARRIED = re.compile(
    r"(?i:\w+_proxy)|UV_(DEFAULT_INDEX|INDEX|INDEX_URL)|GO(PROXY|SUMDB|NOSUMDB|PRIVATE)|EPD_\w+|SSL_CERT_FILE"
)
"""What says where packages and modules are to be had and whom to trust; it means the same there as here."""
AUTHORITIES = Path("/usr/local/share/ca-certificates")
"""Certificates that this machine trusts beside the public ones."""
ENTER = """
set -e
root=$1; shift
mount --bind "$root" "$root"
for folder in dev sys; do mount --rbind "/$folder" "$root/$folder"; done
mount -t proc proc "$root/proc"
mount --bind "$GOROOT" "$root/usr/local/go"
exec chroot "$@"
"""


@dataclass(frozen=True)
class Machine:
    """A bare machine.

    Attributes:
        root: Its root folder.
    """

    root: Path

    def run(self, *command: str, user: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command there, in the checkout, by a user's usual environment; its mounts end with it."""
        home = "/root" if user == 0 else "/nonexistent"
        words = [f"PATH={PATH}", f"HOME={home}", "LC_ALL=C.UTF-8"]
        words += [f"{name}={value}" for name, value in os.environ.items() if CARRIED.fullmatch(name)]
        words += [f"{name}={value}" for name, value in environment.items()]
        inner = ["env", "-i", *words, "sh", "-c", 'cd /checkout && exec "$@"', "-", *command]
        outer = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "-", str(self.root)]
        goroot = program.run(["go", "env", "GOROOT"]).stdout.strip()
        argv = [*outer, f"--userspec={user}:{user}", str(self.root), *inner]
        return program.run(argv, env={**os.environ, "GOROOT": goroot})


def archive() -> Path:
    """Return a minimal Debian as a tar file, made by debootstrap unless the cache holds it.

    Raises:
        AssertionError: It cannot be made; the message ends with debootstrap's last words.
    """
    key = hashlib.sha256(repr(minimal(Path("/"), PREREQUISITES)).encode()).hexdigest()[:16]
    target = cache_folder() / "bare" / f"{key}.tar"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            system, half = Path(folder, "system"), Path(folder, "half.tar")
            done = program.run(minimal(system, PREREQUISITES))
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            shutil.rmtree(system / "var" / "cache" / "apt" / "archives", ignore_errors=True)
            assert program.run(["tar", "-C", str(system), "-cf", str(half), "."]).returncode == 0
            half.rename(target)
    return target


def machine(folder: Path) -> Machine:
    """Make one in a folder."""
    root = folder / "root"
    root.mkdir()
    unpacked = program.run(["tar", "-C", str(root), "-xpf", str(archive())])
    assert unpacked.returncode == 0, unpacked.stderr
    (root / "usr" / "local" / "go").mkdir(exist_ok=True)
    (root / "var" / "cache" / "apt" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    for name in OF_THE_HOST:
        (root / name[1:]).unlink(missing_ok=True)
        shutil.copy(name, root / name[1:])
    # How this machine reaches its mirror (a proxy, say) is how that one does.
    acquire = program.run(["apt-config", "dump", "Acquire"]).stdout
    lines = [line for line in acquire.splitlines() if line.startswith("Acquire::") and " " in line]
    (root / "etc" / "apt" / "apt.conf.d" / "90host").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (root / "etc" / "pip.conf").write_text(pip.configuration(os.environ, pip.files(os.environ, Path.home())))
    if AUTHORITIES.is_dir():
        shutil.copytree(AUTHORITIES, root / AUTHORITIES.relative_to("/"), dirs_exist_ok=True)
    bundle = Path(os.environ.get("SSL_CERT_FILE", ""))
    if bundle.is_file() and bundle not in packages.CERTIFICATE_BUNDLES:
        target = root / bundle.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(bundle, target)
    # Nothing here must outlive a loss of power.
    (root / "etc" / "dpkg" / "dpkg.cfg.d" / "unsafe-io").write_text("force-unsafe-io\n", encoding="ascii")
    shutil.copytree(CHECKOUT, root / "checkout", ignore=LEFT_OUT, symlinks=True)
    return Machine(root)
