"""How pip reaches its index in an image build as it does on this machine, through secrets that no image keeps."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import TYPE_CHECKING

from tools.packages import CERTIFICATE_BUNDLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CARRIED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries", "no-index")
"""Settings that mean the same inside a build; paths of this machine (find-links, cert, target) do not."""


def files(environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """The configuration files that pip reads, later ones winning."""
    config_home = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    result = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config_home / "pip" / "pip.conf"]
    if virtual := environment.get("VIRTUAL_ENV"):
        result.append(Path(virtual) / "pip.conf")
    if explicit := environment.get("PIP_CONFIG_FILE"):
        result.append(Path(explicit))
    return tuple(result)


def configuration(environment: Mapping[str, str], paths: Iterable[Path]) -> str:
    """Merge pip's configuration files and environment into one file's text; uv's index counts where pip has none."""
    settings: dict[str, str] = {}
    for path in paths:
        parser = configparser.RawConfigParser()
        parser.read(path)
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= dict(parser.items(section))
    for key in CARRIED:
        if value := environment.get(f"PIP_{key.replace('-', '_').upper()}"):
            settings[key] = value
    uv = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    if uv and "index-url" not in settings:
        settings["index-url"] = uv
    lines = [f"{key} = {' '.join(settings[key].split())}" for key in CARRIED if key in settings]
    return "\n".join(["[global]", *lines, ""])


def certificates(environment: Mapping[str, str]) -> Path | None:
    """The bundle of certificates that this machine trusts; None = what the base image brings."""
    named = [environment.get(key) for key in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")]
    paths = [*(Path(path) for path in named if path), *CERTIFICATE_BUNDLES]
    return next((path for path in paths if path.is_file()), None)
