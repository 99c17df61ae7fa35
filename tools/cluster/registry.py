"""Images into the local registry: only layers it does not hold yet move."""

from __future__ import annotations

from pathlib import Path

from tools import program, progress
from tools.cluster import configuration
from tools.cluster.layout import REGISTRY, cache_folder
from tools.program import Unfit

KEEP_BYTES = 12 * 1024**3
DIGEST = "@sha256:"


def reference(image: str) -> str:
    """Return the name under which pods pull an image after `load`.

    Args:
        image: A name in buildah's storage, with or without a registry's host and a tag. A host (a first part with a
            dot or a port, or ``localhost``) is replaced; no tag means ``latest``.

    Returns:
        For instance ``10.244.0.1:5000/epd-worker:dev`` for ``localhost/epd-worker:dev``.

    Raises:
        ValueError: The name carries a digest, which a push may change, or is empty.
    """
    if DIGEST in image:
        raise ValueError(f"image is {image!r}; it must be named by a tag, because a push may change the digest")
    first, slash, rest = image.partition("/")
    path = rest if slash and ("." in first or ":" in first or first == "localhost") else image
    if not path or path.startswith((":", "/")):
        raise ValueError(f"image is {image!r}; it must be a name such as localhost/epd-worker:dev")
    tagged = path if ":" in path.rpartition("/")[2] else f"{path}:latest"
    return f"{REGISTRY}/{tagged}"


def load(image: str) -> str:
    """Push an image to the local registry.

    Args:
        image: A name in buildah's storage, or an archive file (``docker save`` or an OCI archive), which is read into
            buildah's storage first.

    Returns:
        The name under which pods pull it.

    Raises:
        Unfit: There is no such image or file, or the push failed.
        ValueError: The name cannot be pushed.
    """
    if Path(image).is_file():
        return _load_archive(Path(image))
    target = reference(image)
    _buildah("push", "--quiet", "--tls-verify=false", image, f"docker://{target}")
    return target


def prune(limit_bytes: int = KEEP_BYTES) -> bool:
    """Drop what no tag names any more, once the registry has grown over a limit; the registry must not run.

    Args:
        limit_bytes: Size of the registry's folder from which on it is worth the seconds.

    Returns:
        Whether it was done.

    Raises:
        Unfit: The registry's own collector failed.
    """
    storage = cache_folder() / "registry"
    size = sum(file.lstat().st_size for file in storage.rglob("*") if file.is_file())
    if size <= limit_bytes or not configuration.REGISTRY_FILE.exists():
        return False
    command = ["docker-registry", "garbage-collect", "--delete-untagged"]
    with progress.step(f"dropping untagged images from the registry's cache ({size / 1024**3:.1f} GiB)"):
        done = program.run([*command, str(configuration.REGISTRY_FILE)])
    if done.returncode:
        raise Unfit(f"The registry's garbage collection failed:\n{done.stderr.strip()[-2000:]}")
    return True


def _load_archive(file: Path) -> str:
    kind = "oci-archive" if _is_oci(file) else "docker-archive"
    identifier = _buildah("pull", "--quiet", f"{kind}:{file}").strip()
    names = _buildah("inspect", "--type=image", "--format={{.FromImage}}", identifier).strip()
    target = reference(names if names and names != identifier else f"localhost/{file.stem}")
    _buildah("push", "--quiet", "--tls-verify=false", identifier, f"docker://{target}")
    return target


def _is_oci(file: Path) -> bool:
    done = program.run(["tar", "-tf", str(file)])
    if done.returncode:
        raise Unfit(f"{file} is not a tar archive: {done.stderr.strip()}")
    return any(line.removeprefix("./") == "oci-layout" for line in done.stdout.splitlines())


def _buildah(*arguments: str) -> str:
    done = program.run(["buildah", *arguments])
    if done.returncode:
        raise Unfit(
            f"buildah {' '.join(arguments[:1])} failed: {done.stderr.strip()}\n"
            "Images come from buildah's storage (`buildah images`) or an archive file (`docker save -o FILE IMAGE`)."
        )
    return done.stdout
