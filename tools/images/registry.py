"""Whether an image registry already holds an image."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from tools.images.recipe import DEFAULT_REPOSITORY, ImageError, Recipe

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
TIMEOUT_SECONDS = 10.0
_LOCAL = ("127.0.0.1", "localhost", DEFAULT_REPOSITORY.partition(":")[0])


@dataclass(frozen=True)
class Registry:
    """A place for images: host, optional port, optional path.

    Attributes:
        repository: what precedes `/epd-operator` in an image's name.
        tls: False = spoken to in plain HTTP.
    """

    repository: str
    tls: bool

    @property
    def host(self) -> str:
        """Host and port."""
        return self.repository.partition("/")[0]

    @property
    def local(self) -> bool:
        """True on this machine's own addresses, where compressing takes the time and only our containerd reads."""
        return self.host.partition(":")[0] in _LOCAL

    def manifest_url(self, image: Recipe) -> str:
        """The address of an image's manifest (OCI distribution specification 1.1, end-3)."""
        path = self.repository.partition("/")[2]
        name = "/".join(part for part in (path, f"epd-{image.name}") if part)
        return f"{'https' if self.tls else 'http'}://{self.host}/v2/{name}/manifests/{image.tag}"

    def digest(self, image: Recipe) -> str | None:
        """Ask for an image's digest.

        Returns:
            `sha256:...`; "" if the registry does not say without credentials; None if it doesn't hold the image.

        Raises:
            ImageError: the registry doesn't answer.
        """
        request = urllib.request.Request(  # noqa: S310  (the scheme is one of two, see manifest_url)
            self.manifest_url(image), method="HEAD", headers={"Accept": ", ".join(MANIFESTS)}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  (the same)
                return str(answer.headers.get("Docker-Content-Digest", ""))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.NOT_FOUND:
                return None
            if error.code in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
                return ""
            raise ImageError(
                f"registry {self.host}: {error.code} {error.reason} for {self.manifest_url(image)}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ImageError(self._unreachable(error)) from error

    def _unreachable(self, error: Exception) -> str:
        reason = getattr(error, "reason", error)
        if self.repository == DEFAULT_REPOSITORY:
            way = "start the local cluster first (make cluster), or name a registry of yours: IMAGE_REPO=host/path"
        else:
            way = "is IMAGE_REPO right? Write http://host:port for a registry without TLS"
        return f"registry {self.host} does not answer ({reason}): {way}"


def registry(repository: str) -> Registry:
    """Understand `IMAGE_REPO`: `host[:port][/path]`, with `http://` in front for a registry without TLS.

    Raises:
        ImageError: it has a query, a tag, capital letters, or no host.
    """
    scheme, _, rest = repository.rpartition("://")
    name = rest.rstrip("/")
    parts = urllib.parse.urlsplit(f"//{name}")
    if scheme not in {"", "http", "https"} or not parts.hostname or name != name.lower() or set(name) & set("@?# "):
        raise ImageError(f"IMAGE_REPO={repository!r}: must be host[:port][/path] in lower case, such as ghcr.io/me")
    if ":" in parts.path:
        raise ImageError(f"IMAGE_REPO={repository!r}: must not end in a tag; tags are made from the images' contents")
    plain = scheme == "http" or (not scheme and parts.hostname in _LOCAL)
    return Registry(name, tls=not plain)
