"""Bills of materials in CycloneDX, from what is locked: nothing is asked of a registry or of this machine.

A lock file names every package with the hash of each file that may be installed for it, for all platforms. Which of
them an artefact's environment takes is decided where it is installed: the marker is kept as a property.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tools.release.lock import Locked

SUFFIX: Final = ".cdx.json"
MARKER: Final = "epd:environment-marker"
NOT_LISTED: Final = "epd:not-listed"


def package(locked: Locked) -> Component:
    """A package of a lock file. Its hashes are those of all its files: an installation has one of them."""
    purl = PackageURL("pypi", None, locked.name, locked.version)
    return Component(
        type=ComponentType.LIBRARY,
        name=locked.name,
        version=locked.version,
        bom_ref=purl.to_string(),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in locked.hashes],
        properties=[Property(name=MARKER, value=locked.marker)] if locked.marker else [],
    )


def image(name: str, version: str, digest: str | None) -> Component:
    """A container image of ours; without a digest where none is known."""
    return Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=version,
        bom_ref=f"{name}:{version}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
    )


def file(name: str, version: str, digest: str) -> Component:
    """An artefact of ours that is one file."""
    return Component(
        type=ComponentType.APPLICATION,
        name=name,
        version=version,
        bom_ref=f"{name}@{version}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
    )


def text(subject: Component, parts: Iterable[Component], *, time: int, not_listed: str = "") -> str:
    """The bill of materials of an artefact: the same text for the same arguments.

    Args:
        subject: The artefact.
        parts: What is in it, or is installed with it.
        time: Seconds since 1970 at which it was made.
        not_listed: What is known to be in it and is not among `parts`.
    """
    parts = list(parts)
    bom = Bom(
        components=parts,
        # A serial number is random by default; the same artefact must get the same bill.
        serial_number=uuid.uuid5(
            uuid.NAMESPACE_OID, repr((subject.bom_ref.value, [one.content for one in subject.hashes], time))
        ),
        metadata=BomMetaData(
            component=subject,
            timestamp=datetime.fromtimestamp(time, UTC),
            properties=[Property(name=NOT_LISTED, value=not_listed)] if not_listed else [],
        ),
    )
    bom.register_dependency(subject, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def faults(written: str) -> list[str]:
    """Where a bill of materials breaks the schema of CycloneDX 1.6."""
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(written)
    return [] if error is None else [str(error)]


def listed(written: str) -> dict[tuple[str, str], frozenset[str]]:
    """The hashes of each component, by its name and version, read back from a bill of materials."""
    return {
        (part["name"], part["version"]): frozenset(one["content"] for one in part.get("hashes", ()))
        for part in json.loads(written).get("components", ())
    }
