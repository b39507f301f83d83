"""Check the licences of every package of the lock, developers' tools included.

    python .ci/licences.py

Reads `requirements/licences.txt` and what is installed here: the network is not needed. Ends with 1
and a line for each package whose licence is missing, not among those below, or not what the
installed package says.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

import locked

EXTRAS = ("train", "text", "triton", "hf", "onnx")
"""What users install; tools of developers are not handed on."""

PERMITTED = re.compile(
    r"apache|bsd|\bmit\b|\bisc\b|python software foundation|psf|mpl|mozilla|zlib|cc0|hpnd|cnri"
    r"|unlicense|boost|bsl-1\.0|nvidia",
    re.IGNORECASE,
)
NOTHING = "nothing to license"
"""The licence of a package that only names others and holds no file of its own."""

JUDGED = {
    "docutils": "its parts have several; under the GPL is rst.el for Emacs, which no wheel holds"
}
"""Packages for developers alone whose parts were looked at, and what was found."""

REFUSED = re.compile(r"\b[AL]?GPL|general public|commons attribution-non", re.IGNORECASE)


def licence(package: Distribution) -> str:
    """What a package says about itself, or an empty text."""
    data = package.metadata
    classifiers = [c for c in data.get_all("Classifier") or [] if c.startswith("License")]
    names = [c.split(" :: ")[-1] for c in classifiers if c.count(" :: ") > 1]
    first_line = (data.get("License") or "").strip().split("\n")[0]
    return str(data.get("License-Expression") or "; ".join(names) or first_line)


def complaint(pin: str, text: str) -> str:
    """What is wrong with the licence that a package states; empty if nothing is."""
    if text == NOTHING or (text and pin.partition("==")[0] in JUDGED):
        return ""
    alternatives = re.split(r"\bOR\b", text)
    if any(PERMITTED.search(part) and not REFUSED.search(part) for part in alternatives):
        return ""
    return f"not permitted: {pin}: {text or 'says no licence'}"


def disagreement(package: locked.Package, text: str) -> str:
    """Where a package that is installed here states another licence than is recorded."""
    try:
        found = distribution(package.name)
    except PackageNotFoundError:
        return ""
    if found.version.partition("+")[0] != package.version or licence(found) == text:
        return ""
    return f"recorded wrongly: {package.pin}: {text}, the package says {licence(found)}"


def main() -> int:
    """Print what is wrong, or how many packages are right."""
    packages, known = locked.everything(), locked.licences()
    wrong = [complaint(package.pin, known.get(package.pin, "")) for package in packages]
    wrong += [disagreement(package, known.get(package.pin, "")) for package in packages]
    wrong = [text for text in wrong if text]
    for text in wrong:
        sys.stderr.write(f"licences: {text}\n")
    if not wrong:
        sys.stdout.write(f"licences: {len(packages)} packages, all permitted\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
