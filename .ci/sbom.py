"""Write the software bill of materials of linrnn's wheel, as CycloneDX 1.6.

    python .ci/sbom.py FOLDER

`make lock` runs it, when others have written to FOLDER what it puts together:

    wheel.txt   by uv: what the wheel and its extras need, with hashes and who needs what
    always.txt  by uv: what is needed without any extra
    *.json      by pip: what the packages say about themselves, licences among it

Our own, since no tool writes such a bill: cyclonedx-py knows either what is installed, which is
that of one platform and has no hashes, or a file of requirements, without licences and without who
needs what; uv knows no licences; and the bills of all of them name the hosts of an index. The bill
is the same whenever the lock is: it has no time and no random number.
"""

import hashlib
import json
import re
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
BILL = ROOT / "requirements" / "linrnn.cdx.json"
PLACES = tuple(
    {
        "sys_platform": platform,
        "platform_machine": machine,
        "python_version": f"3.{minor}",
        "python_full_version": f"3.{minor}.8",
        "platform_python_implementation": "CPython",
    }
    for platform in ("linux", "darwin", "win32")
    for machine in ("x86_64", "aarch64")
    for minor in range(10, 15)
)
"""The kinds of machine that the lock is for, by what its markers ask."""

_VERSION = SchemaVersion.V1_6


@dataclass(frozen=True)
class Package:
    """One version of one package: where it is installed, its files' SHA-256, who needs it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    parents: tuple[str, ...]


def together(*packages: Package) -> bool:
    """Whether packages are ever installed side by side."""
    markers = [Marker(package.marker) for package in packages if package.marker]
    return any(all(marker.evaluate(place) for marker in markers) for place in PLACES)


def packages(text: str) -> list[Package]:
    """Packages in a file of requirements by uv."""
    found = []
    for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        pin, _, marker = block.split("\n")[0].removesuffix("\\").partition(";")
        name, _, version = pin.strip().partition("==")
        hashes = sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
        parents = re.findall(r"[\w.-]+", re.sub(r"\(.*\)|-c .*", "", block.partition("# via")[2]))
        found.append(Package(name, version, marker.strip(), tuple(hashes), tuple(parents)))
    return [package for package in found if together(package)]


def licence(metadata: dict[str, Any]) -> str:
    """The licence that a package states, or an empty text."""
    classifiers = [c for c in metadata.get("classifier", ()) if c.startswith("License")]
    names = [c.split(" :: ")[-1] for c in classifiers if c.count(" :: ") > 1]
    first_line = metadata.get("license", "").strip().split("\n")[0]
    return metadata.get("license_expression") or "; ".join(names) or first_line


def component(package: Package, licence: str, required: bool) -> Component:
    """A package of the lock as an entry."""
    marker = [Property(name="linrnn:marker", value=package.marker)] if package.marker else []
    url = PackageURL("pypi", None, package.name, package.version)
    return Component(
        name=package.name,
        version=package.version,
        purl=url,
        bom_ref=str(url),
        scope=ComponentScope.REQUIRED if required else ComponentScope.OPTIONAL,
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=h) for h in package.hashes],
        properties=marker,
    )


def bill(folder: Path) -> Bom:
    """The whole bill."""
    needed = packages((folder / "wheel.txt").read_text(encoding="utf-8"))
    always = {p.name for p in packages((folder / "always.txt").read_text(encoding="utf-8"))}
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    stated = [entry["metadata"] for report in reports for entry in report["install"]]
    # a build without CUDA, which pip may have found, is of the same licence
    licences = {
        (canonicalize_name(m["name"]), m["version"].partition("+")[0]): licence(m) for m in stated
    }
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    url = PackageURL("pypi", None, table["name"], table["version"])
    whole = Component(
        type=ComponentType.LIBRARY,
        name=table["name"],
        version=table["version"],
        purl=url,
        bom_ref=str(url),
        licenses=[LicenseFactory().make_from_string(table["license"])],
    )
    entries = {p: component(p, licences[p.name, p.version], p.name in always) for p in needed}
    bom = Bom(components=entries.values())
    bom.metadata.component = whole
    # what `make bill` asks for in the place of an extra has no parent
    asked = [e for p, e in entries.items() if not p.parents or table["name"] in p.parents]
    bom.register_dependency(whole, asked)
    for parent, entry in entries.items():
        needs = [e for p, e in entries.items() if parent.name in p.parents and together(p, parent)]
        bom.register_dependency(entry, needs)
    return bom


def document(bom: Bom) -> str:
    """A bill as the text of a file, checked against the schema.

    Raises:
        ValueError: the schema does not permit it.
    """
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


if __name__ == "__main__":
    BILL.write_text(document(bill(Path(sys.argv[1]))), encoding="utf-8")
