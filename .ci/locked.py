"""What the lock says: the files of ``requirements/``, read without a network.

`.ci/lock.py` writes them and says what each is; `make` installs from them.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
CONSTRAINTS = ROOT / "constraints.txt"
LICENCES = FOLDER / "licences.txt"
SBOM = FOLDER / "linrnn.cdx.json"
SETS = {
    "train": ("build", "train", "tables", "onnx"),
    "dev": ("text", "triton", "dev", "docs"),
    "bench": ("bench",),
    "supply": ("supply",),
}
"""The extras that a file of the lock adds to those before it. `hf` is none of them: Python 3.10
cannot have it, and its packages are those that `dev` brings."""

TORCH, TORCH_CPU = "torch", "torch-cpu"
FILES = (TORCH, *SETS)
"""The files that hold all there is; TORCH_CPU holds other files of the same PyTorch."""

_SYSTEMS = (
    ("linux", "Linux", "posix", "x86_64"),
    ("linux", "Linux", "posix", "aarch64"),
    ("darwin", "Darwin", "posix", "arm64"),
    ("win32", "Windows", "nt", "AMD64"),
)
ENVIRONMENTS = tuple(
    {
        "sys_platform": platform,
        "platform_system": system,
        "os_name": name,
        "platform_machine": machine,
        "python_version": f"3.{minor}",
        "python_full_version": f"3.{minor}.8",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for platform, system, name, machine in _SYSTEMS
    for minor in range(10, 15)
)
"""The kinds of machine that the lock is for, by what a marker can ask of them."""


@dataclass(frozen=True)
class Package:
    """One version of one package: where it is installed, its files' SHA-256, who needs it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    parents: tuple[str, ...]

    @property
    def pin(self) -> str:
        """Name and version, as a requirement."""
        return f"{self.name}=={self.version}"

    def holds_in(self, environment: dict[str, str] | None = None) -> bool:
        """Whether it is installed in an environment, by default in this one."""
        return not self.marker or Marker(self.marker).evaluate(environment)


def key(name: str) -> str:
    """A package's name as comparisons need it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml, and what a build needs as ``build-requires``."""
    import tomllib

    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {**table["project"], "build-requires": table["build-system"]["requires"]}


def inputs() -> str:
    """A digest of what the lock was made from; it stands at the top of every file."""
    table = project()
    names = ("name", "version", "license", "requires-python", "dependencies", "build-requires")
    wanted = {name: table[name] for name in (*names, "optional-dependencies")}
    text = json.dumps([wanted, SETS], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def roots(extras: Iterable[str]) -> set[str]:
    """The names that the project itself asks for, by its dependencies and some extras."""
    table = project()
    lines = list(table["dependencies"])
    for extra in extras:
        lines += table["optional-dependencies"][extra]
    return {key(Requirement(line).name) for line in lines} - {key(table["name"])}


def parse(text: str) -> list[Package]:
    """The packages of a file of requirements with hashes and comments ``# via``."""
    found = []
    for block in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]:
        requirement = Requirement(block.split("\n")[0].split("\\")[0].split(" #")[0].strip())
        via = block.partition("# via")[2].replace("#", " ").split("\n")
        parents = {key(line.split()[0]) for line in via if line.strip()}
        (version,) = (clause.version for clause in requirement.specifier)
        found.append(
            Package(
                key(requirement.name),
                version,
                str(requirement.marker or ""),
                tuple(sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))),
                tuple(sorted(parents)),
            )
        )
    return found


def read(name: str) -> list[Package]:
    """The packages of one file of the lock."""
    return parse((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))


def everything() -> list[Package]:
    """Every package of the lock once, other builds of PyTorch left out."""
    return sorted({p for name in FILES for p in read(name)}, key=lambda p: (p.name, p.version))


def closure(names: Iterable[str], packages: Iterable[Package]) -> set[str]:
    """Names, and those of all they need."""
    needs: dict[str, set[str]] = {}
    for package in packages:
        for parent in package.parents:
            needs.setdefault(parent, set()).add(package.name)
    reached, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += needs.get(name, ())
    return reached


def licences() -> dict[str, str]:
    """The licence of each pin of the lock, as its package states it."""
    lines = LICENCES.read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))
