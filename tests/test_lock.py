"""The lock is that of this pyproject.toml, complete, with hashes, and what is installed here."""

import importlib
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETS = {
    "torch": (),
    "train": ("build", "train"),
    "dev": ("tables", "onnx", "text", "triton", "serve", "rl", "dev", "docs"),
    "bench": ("bench",),
    "supply": ("supply",),
}
"""The extras that a file of the lock adds to those before it. `hf` is none of them: Python 3.10
cannot have it, and its packages are those that `dev` brings."""

WRITTEN = (*(f"requirements/{name}.txt" for name in (*SETS, "torch-cpu")), "constraints.txt")
BILL = ROOT / "requirements" / "linrnn.cdx.json"
SYSTEMS = (
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
    for platform, system, name, machine in SYSTEMS
    for minor in range(10, 15)
)
"""The kinds of machine that the lock is for, by what a marker can ask of them."""

tomllib = pytest.importorskip("tomllib")  # the lock is for Python 3.10 too, its tools are not
requirements = pytest.importorskip("packaging.requirements")
canonicalize_name = pytest.importorskip("packaging.utils").canonicalize_name


@pytest.fixture(scope="module")
def bill():
    return json.loads(BILL.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sbom():
    pytest.importorskip("cyclonedx.validation.json", reason="`make lock` installs it")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        return importlib.import_module("sbom")


def project():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {**table["project"], "build-requires": table["build-system"]["requires"]}


def pins(name):
    """The requirements of a file, each with the hashes of its files."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        line = block.split("\n")[0].removesuffix("\\")
        yield requirements.Requirement(line), re.findall(r"sha256:([0-9a-f]{64})", block)


def versions(environment, *names):
    """Versions in the files of an environment; a package in two files has one version."""
    found = {}
    for requirement, _ in (pin for name in names for pin in pins(name)):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (version,) = (clause.version for clause in requirement.specifier)
            assert found.setdefault(canonicalize_name(requirement.name), version) == version
    return found


@pytest.mark.parametrize("name", WRITTEN[:-1])
def test_every_package_has_a_hash(name):
    packages = list(pins(name))
    assert packages
    assert not [str(requirement) for requirement, hashes in packages if not hashes]


def test_no_file_says_where_packages_come_from():
    for name in WRITTEN:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"://|--(extra-)?index|--find-links| @ ", text), name
    assert not re.search(r"pypi\.org|pythonhosted", BILL.read_text(encoding="utf-8"))


def asked_for(environment, extras):
    """Packages that pyproject.toml names for an environment."""
    table = project()
    lines = [*table["dependencies"], *table["build-requires"]]
    for extra in extras:
        lines += table["optional-dependencies"][extra]
    for requirement in map(requirements.Requirement, lines):
        if requirement.name != "linrnn" and (
            requirement.marker is None or requirement.marker.evaluate(environment)
        ):
            yield requirement


def test_whatever_the_project_asks_for_is_locked():
    assert set(project()["optional-dependencies"]) == {"hf", *sum(SETS.values(), ())}
    for environment in ENVIRONMENTS:
        files, extras = [], []
        for name, added in SETS.items():
            files.append(f"requirements/{name}.txt")
            extras += added
            if name == "torch":
                continue
            if name == "dev" and environment["python_version"] != "3.10":
                extras.append("hf")
            here = versions(environment, *files)
            for requirement in asked_for(environment, extras):
                version = here[canonicalize_name(requirement.name)]
                assert requirement.specifier.contains(version), f"{requirement}: run `make lock`"


def test_constraints_are_the_versions_of_the_lock():
    files = [f"requirements/{name}.txt" for name in SETS]
    for environment in ENVIRONMENTS:
        locked, constrained = versions(environment, *files), versions(environment, WRITTEN[-1])
        assert locked.items() <= constrained.items()
        names = {canonicalize_name(r.name) for name in files for r, _ in pins(name)}
        assert names == {canonicalize_name(r.name) for r, _ in pins(WRITTEN[-1])}


def test_what_is_installed_is_what_is_locked():
    installed = 0
    for name, version in versions(None, "requirements/train.txt", "requirements/dev.txt").items():
        try:
            found = distribution(name).version
        except PackageNotFoundError:
            continue
        installed += 1
        assert found == version, f"{name} {found} is installed: run `make install`"
    assert installed > 50
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_nothing_of_cuda_comes_with_a_cpu_build():
    for name in ("train", "dev", "bench", "supply", "torch-cpu"):
        names = [requirement.name for requirement, _ in pins(f"requirements/{name}.txt")]
        assert names
        assert not [found for found in names if re.match("nvidia|cuda", found)]
        assert ("torch" in names) == (name == "torch-cpu")
        assert "triton" not in names or name not in ("train", "torch-cpu")


def test_other_builds_are_of_the_same_torch():
    torch, hashes = next(pin for pin in pins("requirements/torch.txt") if pin[0].name == "torch")
    ((other, others),) = pins("requirements/torch-cpu.txt")
    assert str(other) == f"{torch}+cpu"
    assert not set(hashes) & set(others)


@pytest.mark.parametrize(
    "target", ["quickstart", "install", "test", "docs", "bench", "lock", "audit"]
)
def test_make_installs_from_the_lock_alone(target, tmp_path):
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"))
    for name in (*WRITTEN, "pyproject.toml", "CMakeLists.txt", "requirements/linrnn.cdx.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    done = subprocess.run(
        ["make", "--dry-run", "-C", tmp_path, target], capture_output=True, text=True, check=True
    )
    installs = re.findall(r"-m pip install (.*?)(?:;| \|\|| 2>|\n)", done.stdout)
    installs = [words for words in installs if "--dry-run" not in words]
    assert len(installs) >= 4
    for words in map(str.split, installs):
        assert {"--no-deps", "--no-build-isolation"} <= set(words)
        if words[-2:] != ["-e", "."]:
            assert "--require-hashes" in words
            assert words[-2] == "-r"
            assert words[-1] in WRITTEN


def test_the_bill_lists_what_the_wheel_needs(bill):
    locked = {}
    for requirement, hashes in (p for name in SETS for p in pins(f"requirements/{name}.txt")):
        (version,) = (clause.version for clause in requirement.specifier)
        locked[f"pkg:pypi/{canonicalize_name(requirement.name)}@{version}"] = sorted(hashes)
    entries = {entry["bom-ref"]: entry for entry in bill["components"]}
    assert set(entries) <= set(locked)
    for reference, entry in entries.items():
        assert reference == entry["purl"]
        assert [h["content"] for h in entry["hashes"]] == locked[reference]
    required = {entry["name"] for entry in bill["components"] if entry["scope"] == "required"}
    assert {"torch", "numpy", "safetensors", "jaxtyping", "filelock"} <= required
    assert not {"lightning", "transformers", "aiohttp"} & required
    for environment in ENVIRONMENTS:
        extras = [name for name in ("train", "text", "tables", "triton", "hf", "onnx", "rl")]
        asked = {canonicalize_name(r.name) for r in asked_for(environment, extras)}
        assert asked - {"scikit-build-core"} <= {entry["name"] for entry in bill["components"]}


def test_the_bill_states_permitted_licences(bill):
    """Those of other platforms as well, which pip-licenses does not see here."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    policy = table["tool"]["pip-licenses"]
    permitted = {text.strip() for text in policy["allow-only"].split(";")}
    read = {"cuda-toolkit", *(pin for pin in policy["ignore-packages"] if ":" in pin)}
    for entry in bill["components"]:
        if entry["name"] in read or f"{entry['name']}:{entry['version']}" in read:
            assert "licenses" not in entry or entry["name"] == "cuda-toolkit"
            continue
        (stated,) = entry["licenses"]
        text = stated.get("expression") or next(iter(stated["license"].values()))
        assert set(text.split("; ")) <= permitted, entry["name"]


def test_the_bill_is_of_this_version_and_connected(bill):
    whole = bill["metadata"]["component"]
    table = project()
    assert (whole["name"], whole["version"]) == (table["name"], table["version"])
    graph = {d["ref"]: d.get("dependsOn", []) for d in bill["dependencies"]}
    assert "pkg:pypi/transformers@5.23.0" in graph[whole["bom-ref"]]
    reached, waiting = set(), [whole["bom-ref"]]
    while waiting:
        reference = waiting.pop()
        if reference not in reached:
            reached.add(reference)
            waiting += graph[reference]
    assert reached == {whole["bom-ref"], *(entry["bom-ref"] for entry in bill["components"])}


def test_the_bill_has_no_time_in_it(bill):
    assert "timestamp" not in bill["metadata"]


def test_the_bill_is_made_of_what_uv_and_pip_wrote(sbom, tmp_path):
    digest = "0" * 64
    (tmp_path / "wheel.txt").write_text(
        f"""\
new==2 ; python_full_version >= '3.11' \\
    --hash=sha256:{digest}
    # via
    #   -c constraints.txt
    #   linrnn (pyproject.toml)
nowhere==1 ; sys_platform == 'emscripten'
    # via linrnn (pyproject.toml)
old==1 ; python_full_version < '3.11'
    # via new
asked==1
    # via -c constraints.txt
part==1
    # via new
"""
    )
    (tmp_path / "always.txt").write_text("new==2\n")
    stated = [
        {"name": "New", "version": "2", "license_expression": "MIT"},
        {"name": "old", "version": "1", "classifier": ["License :: OSI Approved :: MIT License"]},
        {"name": "asked", "version": "1", "license": "BSD\nRedistribution ..."},
        {"name": "part", "version": "1+cpu"},
    ]
    report = {"install": [{"metadata": metadata} for metadata in stated]}
    (tmp_path / "1.json").write_text(json.dumps(report))
    text = sbom.document(sbom.bill(tmp_path))
    assert text == sbom.document(sbom.bill(tmp_path))
    made = json.loads(text)
    entries = {entry["name"]: entry for entry in made["components"]}
    assert {name: entry.get("licenses") for name, entry in entries.items()} == {
        "new": [{"license": {"id": "MIT"}}],
        "old": [{"license": {"name": "MIT License"}}],
        "asked": [{"license": {"name": "BSD"}}],
        "part": None,
    }
    assert entries["new"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert [name for name in entries if entries[name]["scope"] == "required"] == ["new"]
    graph = {edge["ref"]: edge.get("dependsOn", []) for edge in made["dependencies"]}
    assert graph[made["metadata"]["component"]["bom-ref"]] == [
        "pkg:pypi/asked@1",
        "pkg:pypi/new@2",
    ]
    assert graph["pkg:pypi/new@2"] == ["pkg:pypi/part@1"]
