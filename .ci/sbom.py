"""The software bill of materials of linrnn's wheel, as CycloneDX 1.6, from the lock.

It lists what the wheel needs, `scope` saying whether always or for an extra, in the locked versions
with the SHA-256 of their files and with their licences. It is the same whenever the lock is: it has
no time and no random number.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable

import locked
from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from licences import EXTRAS, NOTHING
from locked import Package
from packageurl import PackageURL

_VERSION = SchemaVersion.V1_6


def component(package: Package, licence: str, required: set[str]) -> Component:
    """A package of the lock as an entry."""
    known = [] if licence == NOTHING else [LicenseFactory().make_from_string(licence)]
    marker = [Property(name="linrnn:marker", value=package.marker)] if package.marker else []
    url = PackageURL("pypi", None, package.name, package.version)
    return Component(
        name=package.name,
        version=package.version,
        purl=url,
        bom_ref=str(url),
        scope=ComponentScope.REQUIRED if package.name in required else ComponentScope.OPTIONAL,
        licenses=known,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=h) for h in package.hashes],
        properties=marker,
    )


def together(one: Package, other: Package) -> bool:
    """Whether two packages are ever installed side by side."""
    return any(one.holds_in(e) and other.holds_in(e) for e in locked.ENVIRONMENTS)


def bill(packages: Iterable[Package]) -> Bom:
    """The whole bill, given the packages of the lock."""
    packages = [p for p in packages if any(map(p.holds_in, locked.ENVIRONMENTS))]
    table = locked.project()
    required = locked.closure(locked.roots(()), packages)
    roots = locked.roots(EXTRAS)
    shipped = locked.closure(roots, packages)
    licences = locked.licences()
    entries = {p: component(p, licences[p.pin], required) for p in packages if p.name in shipped}
    url = PackageURL("pypi", None, table["name"], table["version"])
    whole = Component(
        type=ComponentType.LIBRARY,
        name=table["name"],
        version=table["version"],
        purl=url,
        bom_ref=str(url),
        licenses=[LicenseFactory().make_from_string(table["license"])],
    )
    bom = Bom(components=entries.values())
    bom.metadata.component = whole
    bom.register_dependency(whole, [e for p, e in entries.items() if p.name in roots])
    for parent, entry in entries.items():
        needs = [e for p, e in entries.items() if parent.name in p.parents and together(p, parent)]
        bom.register_dependency(entry, needs)
    return bom


def document() -> str:
    """The bill as the text of a file, checked against the schema.

    Raises:
        ValueError: the schema does not permit it.
    """
    bom = bill(locked.everything())
    written = json.loads(make_outputter(bom, OutputFormat.JSON, _VERSION).output_as_string())
    written["metadata"].pop("timestamp")
    written.pop("serialNumber")
    digest = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
    written["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_OID, digest).urn
    text = json.dumps(written, indent=1, sort_keys=True) + "\n"
    problem = JsonStrictValidator(_VERSION).validate_str(text)
    if problem is not None:
        raise ValueError(f"sbom: the bill must keep the schema of CycloneDX: {problem}")
    return text
