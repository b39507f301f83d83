"""Wheel and sdist: their contents; a wheel needs no compiler; builds are reproducible."""

import hashlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from linrnn.compute import native

ROOT = Path(__file__).parents[1]
BILL = "requirements/linrnn.cdx.json"
BUILT_FROM = ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", ".gitignore", "src", BILL)


def build(folder: Path, root: Path = ROOT, **environment: str) -> Path:
    """Build a wheel from a copy of the sources, as they would come from a clone."""
    pytest.importorskip("scikit_build_core")
    source = folder / "source"
    for name in BUILT_FROM:
        original, copy = root / name, source / name
        if original.is_dir():
            shutil.copytree(original, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(original, copy)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "-w", str(folder)],
        cwd=source,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    # for one of three instruction sets, and not optimised, which takes a file ten times as long
    fast = "LINRNN_ISAS=baseline;LINRNN_OPTIMISE=-O0"
    return build(tmp_path_factory.mktemp("wheel"), SKBUILD_CMAKE_DEFINE=fast)


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("pure"), CXX="/bin/false", CC="/bin/false")


# an editable install puts its finder in front of the path; a wheel is tested without it
RUN = """
import runpy, sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("ScikitBuild")]
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "doctor":
    sys.argv = ["linrnn", "doctor"]
    runpy.run_module("linrnn", run_name="__main__")
exec(sys.argv[2])
"""


def run_from(wheel: Path, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code, or ``doctor``, with the unpacked wheel in front of whatever else is installed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return subprocess.run(
        [sys.executable, "-c", RUN, str(folder), code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


SCAN = """
import torch, linrnn, warnings
from linrnn.ops import linear_scan
warnings.simplefilter("ignore")  # the announcement of a slow path
h, last = linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))
print(linrnn.__path__[0], h.flatten().tolist(), last.item())
"""


def test_wheel_serves_every_python_on_one_platform(wheel):
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")


@pytest.mark.parametrize("kind", ["wheel", "pure_wheel"])
def test_wheel_holds_the_package_and_nothing_else(kind, request):
    names = contents(request.getfixturevalue(kind))
    package = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")}
    assert package <= set(names)
    assert "linrnn/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"linrnn", "linrnn-0.1.0.dist-info"}
    assert not [
        name
        for name in names
        if name.endswith((".cpp", ".h", ".txt", ".pyc")) and "dist-info" not in name
    ]


@pytest.mark.parametrize("kind", ["wheel", "pure_wheel"])
def test_wheel_holds_its_bill_of_materials(kind, request):
    with zipfile.ZipFile(request.getfixturevalue(kind)) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
        bill = archive.read(name.replace("METADATA", "sboms/linrnn.cdx.json"))
    assert bill == (ROOT / BILL).read_bytes()
    contents = json.loads(bill)
    assert contents["metadata"]["component"]["version"] == metadata["Version"]
    listed = {entry["name"]: entry["scope"] for entry in contents["components"]}
    for line in metadata.get_all("Requires-Dist"):
        name, always = re.match(r"[\w-]+", line).group().lower(), "extra ==" not in line
        if always or re.search(r"extra == .(train|text|triton|hf|onnx)\b", line):
            assert listed[name] == "required" or not always, line


def test_wheel_holds_the_native_kernels(wheel):
    libraries = [name for name in contents(wheel) if name.startswith("linrnn/_native/")]
    assert len(libraries) == 1


def test_installed_wheel_computes_with_the_native_kernels(wheel, tmp_path):
    done = run_from(wheel, tmp_path, SCAN)
    assert done.stdout.split(maxsplit=1) == [f"{tmp_path}/linrnn", "[1.0, 1.5, 1.75] 1.75\n"]
    report = run_from(wheel, tmp_path, "doctor").stdout
    assert f"{tmp_path}/linrnn/_native/" in report


def test_wheel_without_a_compiler_has_no_native_kernels(pure_wheel):
    assert pure_wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in contents(pure_wheel) if "_native/" in name]


def test_wheel_without_a_compiler_computes_the_same(pure_wheel, tmp_path):
    done = run_from(pure_wheel, tmp_path, SCAN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1) == [f"{tmp_path}/linrnn", "[1.0, 1.5, 1.75] 1.75\n"]


def test_doctor_says_that_the_native_kernels_are_missing(pure_wheel, tmp_path):
    done = run_from(pure_wheel, tmp_path, "doctor")
    assert done.returncode == 0, done.stderr
    assert "the native kernels are not in this installation" in done.stdout
    assert "install a C++ compiler" in done.stdout


SDIST = {
    *("CMakeLists.txt", "pyproject.toml", "PKG-INFO", "README.md", "LICENSE", "src"),
    *(".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("Makefile", "constraints.txt", "requirements", "mkdocs.yml", "CITATION.cff", "tests"),
}
"""Names at the top of a source distribution."""

SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30}"
    r"|\bhf_[A-Za-z]{30}|/home/\w+|/root/|/Users/\w+"
)


def clone(folder: Path) -> Path:
    """A copy of the files that are under version control, or will be."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a clone")
    for name in done.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def build_sdist(source: Path, out: Path, **environment: str) -> Path:
    pytest.importorskip("build")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", str(out), str(source)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("sdist")
    return build_sdist(clone(folder / "source"), folder / "out")


def test_sdist_holds_what_a_build_needs_and_nothing_else(sdist):
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    needed = {p.relative_to(ROOT).as_posix() for p in (ROOT / "src").rglob("*.py")}
    needed |= {p.relative_to(ROOT).as_posix() for p in (ROOT / "src" / "native").rglob("*.[ch]*")}
    smoke = {p.relative_to(ROOT).as_posix() for p in (ROOT / "tests" / "smoke").glob("*.py")}
    assert {name for name in names if name.startswith("tests/")} == smoke != set()
    assert needed <= names
    assert {
        "CMakeLists.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "SECURITY.md",
        BILL,
    } <= names
    assert {name.split("/")[0] for name in names} <= SDIST
    assert not [m.name for m in members if m.issym() or m.islnk()]
    assert sum(member.size for member in members) < 10e6


def test_sdist_holds_no_secret_and_no_path_of_a_machine(sdist):
    with tarfile.open(sdist) as archive:
        for member in archive:
            if member.isfile():
                text = archive.extractfile(member).read().decode(errors="replace")
                assert not SECRETS.search(text), member.name


def test_wheel_holds_its_licence_and_what_it_needs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
        licence = archive.read(name.replace("METADATA", "licenses/LICENSE"))
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in metadata
    for package in ("torch>=2.6", "numpy", "safetensors", "jaxtyping"):
        assert f"Requires-Dist: {package}" in metadata


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_two_builds_give_the_same_bytes(tmp_path):
    pytest.importorskip("scikit_build_core")
    epoch = {"SOURCE_DATE_EPOCH": "1700000000"}
    found = []
    original = clone(tmp_path / "original")
    for name in ("first", "another/place"):
        source = Path(shutil.copytree(original, tmp_path / name / "clone"))
        archive = build_sdist(source, tmp_path / name / "out", **epoch)
        wheel = build(tmp_path / name / "wheel", source, **epoch)
        found.append((digest(archive), digest(wheel)))
    assert found[0] == found[1]


@pytest.mark.slow
def test_wheel_is_installed_without_a_network(wheel, tmp_path):
    others = tmp_path / "others"  # what linrnn needs, as a folder of wheels would give it
    others.mkdir()
    for place in site.getsitepackages():
        for entry in Path(place).iterdir():
            if "linrnn" not in entry.name and entry.suffix != ".pth":
                (others / entry.name).symlink_to(entry)
    # without the pip and setuptools of its own, which would be found before those of `others`
    make = [sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"]
    subprocess.run(make, check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{others}\n")
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--no-index", "--find-links", wheel.parent, "linrnn"]
    nowhere = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    done = subprocess.run(
        install, env=os.environ | nowhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    doctor = [tmp_path / "venv" / "bin" / "linrnn", "doctor"]
    report = subprocess.run(doctor, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert f"{packages}/linrnn/_native/" in report


def test_a_build_for_this_machine_is_for_the_best_instruction_set_it_has(tmp_path):
    """Configured alone: to compile it takes minutes."""
    cmake = shutil.which("cmake")
    if cmake is None or not native_library_of_all():
        pytest.skip("no cmake, or the library was built for one instruction set")
    configure = [cmake, "-S", ROOT, "-B", tmp_path, "-DLINRNN_ISAS=native"]
    subprocess.run(configure, capture_output=True, check=True)
    folders = {path.name for path in (tmp_path / "CMakeFiles").glob("kernels_*.dir")}
    best = native.load()[0].isa
    assert folders == {f"kernels_{best}.dir"}


def test_kernels_of_other_processors_are_optimised_less_where_that_is_said(tmp_path):
    """As `make install` does; configured alone."""
    cmake = shutil.which("cmake")
    if cmake is None or not native_library_of_all():
        pytest.skip("no cmake, or the library was built for one instruction set")
    options = ["-DLINRNN_OPTIMISE_OTHERS=-O2", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    configure = [cmake, "-S", ROOT, "-B", tmp_path, *options]
    subprocess.run(configure, capture_output=True, check=True)
    levels = {}
    for entry in json.loads((tmp_path / "compile_commands.json").read_text()):
        words = entry["command"].split()
        isa = next((w.partition("=")[2] for w in words if w.startswith("-DLINRNN_ISA=")), "")
        levels.setdefault(isa, set()).add([w for w in words if w.startswith("-O")][-1])
    best = native.load()[0].isa
    assert {best, "baseline"} <= levels.keys()
    assert levels == {isa: {"-O3" if isa in ("", best) else "-O2"} for isa in levels}


def test_an_install_where_it_is_used_compiles_for_this_machine_alone(monkeypatch):
    settings = pytest.importorskip("scikit_build_core.settings.skbuild_read_settings")

    def instruction_sets(state):
        reader = settings.SettingsReader.from_file(ROOT / "pyproject.toml", {}, state=state)
        return reader.settings.cmake.define.get("LINRNN_ISAS")

    monkeypatch.delenv("SKBUILD_CMAKE_DEFINE", raising=False)
    assert [instruction_sets(state) for state in ("editable", "wheel")] == ["native", None]
    made = re.search(r'SKBUILD_CMAKE_DEFINE="(LINRNN_ISAS=;.*?)"', (ROOT / "Makefile").read_text())
    monkeypatch.setenv("SKBUILD_CMAKE_DEFINE", made[1])  # make install
    assert instruction_sets("editable") == ""


@pytest.mark.slow
def test_kernels_of_a_better_processor_are_left_out_with_the_reason(tmp_path):
    """A home that moved: LINRNN_ISA stands for the older processor."""
    cmake = shutil.which("cmake")
    if cmake is None or not native_library_of_all() or native.load()[0].isa == "baseline":
        pytest.skip("no cmake, or no library for better processors than the least")
    options = [f"-DLINRNN_ISAS={native.load()[0].isa}", "-DLINRNN_OPTIMISE=-O0"]
    subprocess.run([cmake, "-S", ROOT, "-B", tmp_path, *options], capture_output=True, check=True)
    subprocess.run([cmake, "--build", tmp_path], capture_output=True, check=True)
    moved = {"LINRNN_KERNELS": str(tmp_path / "kernels.so"), "LINRNN_ISA": "baseline"}
    code = SCAN.replace('warnings.simplefilter("ignore")', 'warnings.simplefilter("always")')
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | moved,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("[1.0, 1.5, 1.75] 1.75\n")
    assert "were built for another processor; reinstall linrnn on this one" in done.stderr


def native_library_of_all():
    """Whether the library that is installed has kernels for every processor of this family."""
    code = "import linrnn.compute.native as n; print(n.load()[0] is not None)"
    environment = os.environ | {"LINRNN_ISA": "baseline"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"
