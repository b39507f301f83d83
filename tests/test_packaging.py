"""What a wheel holds, with a compiler and without, and that the second kind works."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT_FROM = ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", ".gitignore", "src")


def build(folder: Path, **environment: str) -> Path:
    """Build a wheel from a copy of the sources, as they would come from a clone."""
    pytest.importorskip("scikit_build_core")
    source = folder / "source"
    for name in BUILT_FROM:
        original, copy = ROOT / name, source / name
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
    return build(tmp_path_factory.mktemp("wheel"))


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
