"""Write the lock: what `make` installs, with versions and the SHA-256 of every file.

    python .ci/lock.py [--upgrade | --upgrade-package NAME ...]

Versions stay as `constraints.txt` has them unless `pyproject.toml` asks for others or an option
says so. One resolution serves every platform and Python; it is laid down in layers, each installed
after those before it:

    requirements/torch.txt      PyTorch as the public index has it, with what its CUDA build needs
    requirements/torch-cpu.txt  the same version without CUDA, taken instead where pip finds it
    requirements/train.txt      what `make quickstart` needs, tools to build with included
    requirements/dev.txt, bench.txt, supply.txt
                                what developing, benchmarks, and lock and audit need besides
    constraints.txt             all versions alone, for `pip install -c constraints.txt`
    requirements/licences.txt   the licence of each; requirements/linrnn.cdx.json the SBOM

Needs the network, pip and uv. A package that is not installed is downloaded once for its licence.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

import locked
from licences import NOTHING, licence
from locked import Package

SOURCES = ("s5-pytorch",)
"""What exists as source only; it is built with the locked setuptools."""

_NOTES = {
    "torch": "PyTorch of the public index, and what its CUDA build for Linux needs",
    "torch-cpu": "PyTorch without CUDA, taken instead of torch.txt where pip is told where it lies",
    "train": "what `make quickstart` installs after PyTorch",
    "dev": "what `make install` installs after train.txt",
    "bench": "what benchmarks need after dev.txt",
    "supply": "what `make lock` and `make audit` need after dev.txt",
    "constraints": "the versions of the lock alone: pip install -c constraints.txt ...",
    "licences": "the licence of every package of the lock, as the package states it",
}


def heading(name: str) -> str:
    """The first lines of a file."""
    return f"# {_NOTES[name]}\n# Written by `make lock` from pyproject.toml, {locked.inputs()}\n"


def resolve(options: list[str]) -> str:
    """The one resolution, with hashes and who needs what."""
    names = [name for added in locked.SETS.values() for name in added]
    extras = [word for name in names for word in ("--extra", name)]
    python = locked.project()["requires-python"].removeprefix(">=")
    binary = ["--only-binary", ":all:", *(w for name in SOURCES for w in ("--no-binary", name))]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.txt")
        out.write_text(locked.CONSTRAINTS.read_text(encoding="utf-8"), encoding="utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *extras, *binary),
                *("--universal", "--python-version", python, "--generate-hashes", "--no-header"),
                *("--quiet", "--output-file", str(out), *options),
            ],
            cwd=locked.ROOT,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return out.read_text(encoding="utf-8")


def cuda_names(packages: list[Package]) -> set[str]:
    """What PyTorch needs on Linux alone, which is what its CUDA build needs."""
    elsewhere = [e for e in locked.ENVIRONMENTS if e["sys_platform"] != "linux"]
    portable = {p.name for p in packages if any(p.holds_in(e) for e in elsewhere)}
    return locked.closure({locked.TORCH}, packages) - portable


def layers(packages: list[Package]) -> dict[str, set[str]]:
    """The names in each file; a CUDA package again where the project itself asks for it."""
    torch = {locked.TORCH} | cuda_names(packages)
    names, seen, extras = {locked.TORCH: torch}, set(torch), []
    for layer, added in locked.SETS.items():
        extras += added
        asked = locked.roots(extras)
        wanted = locked.closure(asked, [p for p in packages if p.name not in torch])
        names[layer] = (wanted - seen) | (locked.roots(added) & torch - {locked.TORCH})
        seen |= wanted
    return names


def write_layers(text: str) -> None:
    """Split the resolution into the files of the lock."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    packages = locked.parse(text)
    for layer, names in layers(packages).items():
        lines = [b for b, p in zip(blocks, packages, strict=True) if p.name in names]
        content = heading(layer) + "".join(lines)
        (locked.FOLDER / f"{layer}.txt").write_text(content, encoding="utf-8")
    pins = [f"{p.pin} ; {p.marker}" if p.marker else p.pin for p in packages]
    locked.CONSTRAINTS.write_text(heading("constraints") + "\n".join(pins) + "\n", encoding="utf-8")


def download(pin: str, folder: str) -> Path | None:
    """The wheel that pip would install here for a pin, whatever Python it asks for."""
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
            ),
            *("--ignore-requires-python", "--disable-pip-version-check", "--dest", folder, pin),
        ],
        capture_output=True,
        check=False,
    )
    return next(Path(folder).glob("*.whl"), None) if done.returncode == 0 else None


def write_cpu_builds() -> None:
    """Keep the hashes of PyTorch's CPU builds of this version; add the one that pip finds here."""
    path = locked.FOLDER / f"{locked.TORCH_CPU}.txt"
    (version,) = (p.version for p in locked.read(locked.TORCH) if p.name == locked.TORCH)
    known = locked.read(locked.TORCH_CPU) if path.is_file() else []
    hashes = {h for p in known if p.version == f"{version}+cpu" for h in p.hashes}
    with tempfile.TemporaryDirectory() as folder:
        wheel = download(f"{locked.TORCH}=={version}+cpu", folder)
        if wheel is not None:
            hashes.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    lines = [f"{locked.TORCH}=={version}+cpu", *(f"    --hash=sha256:{h}" for h in sorted(hashes))]
    text = " \\\n".join(lines) + "\n" if hashes else ""
    path.write_text(heading(locked.TORCH_CPU) + text, encoding="utf-8")


def installed(package: Package) -> Distribution | None:
    """A locked package as it is installed here, if it is in this version."""
    try:
        found = distribution(package.name)
    except PackageNotFoundError:
        return None
    return found if found.version.partition("+")[0] == package.version else None


def licence_of(package: Package) -> str:
    """What a package states of its licence."""
    found = installed(package)
    if found is not None:
        return licence(found)
    with tempfile.TemporaryDirectory() as folder:
        wheel = download(package.pin, folder)
        if wheel is None:
            raise SystemExit(f"lock: failed: {package.pin} cannot be downloaded for its licence")
        with zipfile.ZipFile(wheel) as archive:
            (entry,) = (e for e in zipfile.Path(archive).iterdir() if e.name.endswith(".dist-info"))
            empty = all(name.startswith(entry.name) for name in archive.namelist())
            return licence(PathDistribution(entry)) or (NOTHING if empty else "")


def write_licences(packages: Iterable[Package]) -> None:
    """Keep the licences that are known; find the others."""
    known = locked.licences() if locked.LICENCES.is_file() else {}
    lines = [f"{p.pin}: {known[p.pin] if p.pin in known else licence_of(p)}" for p in packages]
    text = heading("licences") + "\n".join(lines) + "\n"
    locked.LICENCES.write_text(text, encoding="utf-8")


def main() -> int:
    """Resolve, and write every file."""
    import sbom  # with a library that the tests of this file do without

    locked.FOLDER.mkdir(exist_ok=True)
    write_layers(resolve(sys.argv[1:]))
    write_cpu_builds()
    write_licences(locked.everything())
    locked.SBOM.write_text(sbom.document(), encoding="utf-8")
    sys.stdout.write(f"lock: {len(locked.everything())} packages\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
