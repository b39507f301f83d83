"""Check the licences of every package that an installation of linrnn can bring along.

    python .ci/licences.py

Reads what is installed here: the network is not needed. Ends with 1 and a line for each package
whose licence is missing or not among those below.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

EXTRAS = ("train", "text", "triton", "hf", "onnx")
"""What users install; tools of developers are not handed on."""

PERMITTED = re.compile(
    r"apache|bsd|\bmit\b|\bisc\b|python software foundation|psf|mpl|mozilla|zlib|cc0|hpnd|cnri"
    r"|unlicense|boost|bsl-1\.0|nvidia",
    re.IGNORECASE,
)
REFUSED = re.compile(r"\b[AL]?GPL|general public|commons attribution-non", re.IGNORECASE)


def licence(package: Distribution) -> str:
    """What a package says about itself, or an empty text."""
    data = package.metadata
    classifiers = [c for c in data.get_all("Classifier") or [] if c.startswith("License")]
    names = [c.split(" :: ")[-1] for c in classifiers if c.count(" :: ") > 1]
    first_line = (data.get("License") or "").strip().split("\n")[0]
    return str(data.get("License-Expression") or "; ".join(names) or first_line)


def needed(name: str, extras: tuple[str, ...], seen: set[str]) -> Iterator[Distribution]:
    """A package and all it needs here, each once; what is not installed is left out."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return
    seen.add(key)
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return
    yield package
    for line in package.requires or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield from needed(requirement.name, tuple(requirement.extras), seen)


def complaint(package: Distribution) -> str:
    """What is wrong with a package's licence; empty if nothing is."""
    text = licence(package)
    alternatives = re.split(r"\bOR\b", text)
    if any(PERMITTED.search(part) and not REFUSED.search(part) for part in alternatives):
        return ""
    return f"{package.name} {package.version}: {text or 'says no licence'}"


def main() -> int:
    """Print what is wrong, or how many packages are right."""
    packages = list(needed("linrnn", EXTRAS, set()))
    if len(packages) < 2:
        sys.stderr.write("licences: linrnn must be installed, with its extras\n")
        return 1
    wrong = [text for text in map(complaint, packages) if text]
    for text in wrong:
        sys.stderr.write(f"licences: not permitted: {text}\n")
    if not wrong:
        sys.stdout.write(f"licences: {len(packages)} packages, all permitted\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
