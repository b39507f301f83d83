"""The lock is that of this pyproject.toml, complete, with hashes, and what is installed here."""

import importlib
import json
import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETS = ("torch", "train", "dev", "bench", "supply")
WRITTEN = (*(f"requirements/{n}.txt" for n in (*SETS, "torch-cpu", "licences")), "constraints.txt")

pytest.importorskip("tomllib")  # the lock is for Python 3.10 too, its tools are not
pytest.importorskip("packaging")


def tool(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def locked():
    return tool("locked")


@pytest.fixture(scope="module")
def bill():
    return json.loads((ROOT / "requirements" / "linrnn.cdx.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", WRITTEN)
def test_it_was_made_from_this_pyproject(locked, name):
    heading = (ROOT / name).read_text(encoding="utf-8").split("\n")[1]
    assert heading.endswith(f" {locked.inputs()}"), f"{name} is stale: run `make lock`"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"torch>=2.6"', '"torch>=2.7"'),
        ('"pytest", ', '"pytest", "another", '),
        ('requires = ["scikit-build-core>=1.0"', 'requires = ["scikit-build-core>=1.1"'),
        ('version = "0.1.0"', 'version = "0.1.1"'),
    ],
)
def test_a_changed_requirement_makes_it_stale(locked, old, new, monkeypatch, tmp_path):
    before = locked.inputs()
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "pyproject.toml").write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.setattr(locked, "ROOT", tmp_path)
    assert locked.inputs() != before


@pytest.mark.parametrize("name", WRITTEN[:-2])
def test_every_package_has_a_hash(locked, name):
    packages = locked.read(Path(name).stem)
    assert packages
    assert not [p.pin for p in packages if not p.hashes]


def test_no_file_says_where_packages_come_from():
    for name in WRITTEN:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"://|--(extra-)?index|--find-links| @ ", text), name


def test_an_environment_gets_one_version_of_a_package(locked):
    for environment in locked.ENVIRONMENTS:
        names = [p.name for p in locked.everything() if p.holds_in(environment)]
        assert len(names) == len(set(names))


def asked_for(locked, environment, skip=()):
    """What pyproject.toml names for an environment: the requirement and whether it must hold."""
    from packaging.requirements import Requirement

    table = locked.project()
    lines = [*table["dependencies"], *table["build-requires"]]
    for extra, more in table["optional-dependencies"].items():
        lines += more if extra not in skip else ()
    for requirement in map(Requirement, lines):
        if requirement.name != "linrnn" and (
            requirement.marker is None or requirement.marker.evaluate(environment)
        ):
            yield requirement


def test_whatever_the_project_asks_for_is_locked(locked):
    packages = locked.everything()
    for environment in locked.ENVIRONMENTS:
        here = {p.name: p.version for p in packages if p.holds_in(environment)}
        skip = ("hf",) if environment["python_version"] == "3.10" else ()
        for requirement in asked_for(locked, environment, skip):
            version = here[locked.key(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}, locked {version}"


def needs(locked):
    """All that is installed here and that pyproject.toml needs: requirement and version."""
    from packaging.requirements import Requirement

    waiting, seen = [(r, frozenset(r.extras)) for r in asked_for(locked, None)], set()
    while waiting:
        requirement, extras = waiting.pop()
        name = locked.key(requirement.name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        yield requirement, found.version.partition("+")[0]
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for more in map(Requirement, found.requires or ()):
            if more.marker is None or any(
                more.marker.evaluate({"extra": e}) for e in ("", *extras)
            ):
                waiting.append((more, frozenset(more.extras)))


def test_what_is_installed_is_what_is_locked(locked):
    here = {p.name: p.version for p in locked.everything() if p.holds_in()}
    walked = list(needs(locked))
    assert len(walked) > 50
    for requirement, version in walked:
        name = locked.key(requirement.name)
        assert here.get(name) == version, f"{name} {version} is installed: run `make install`"
        assert requirement.specifier.contains(version)


def test_the_files_hold_what_their_extras_need(locked):
    layers = tool("lock").layers(locked.everything())
    assert {name: {p.name for p in locked.read(name)} for name in SETS} == layers


def test_layers_keep_cuda_apart(locked):
    text = """\
filelock==1 # via torch
gpu==1 ; sys_platform == 'linux' # via torch
driver==1 ; sys_platform == 'linux' # via gpu
lightning==1 # via linrnn (pyproject.toml)
matplotlib==1 # via linrnn (pyproject.toml)
torch==1
triton==1 ; sys_platform == 'linux'
    # via
    #   linrnn (pyproject.toml)
    #   torch
"""
    layers = tool("lock").layers(locked.parse(text))
    assert layers["torch"] == {"torch", "gpu", "driver", "triton"}
    assert {"filelock", "lightning"} <= layers["train"]
    assert not {"torch", "gpu", "driver", "triton"} & layers["train"]
    assert "triton" in layers["dev"]
    assert not {"gpu", "driver", "filelock"} & layers["dev"]


def test_nothing_of_cuda_comes_with_a_cpu_build(locked):
    for name in ("train", "dev", "bench", "supply", "torch-cpu"):
        assert not [p.pin for p in locked.read(name) if re.match("nvidia|cuda", p.name)]


def test_other_builds_are_of_the_same_torch(locked):
    (torch,) = (p for p in locked.read("torch") if p.name == "torch")
    (other,) = locked.read("torch-cpu")
    assert (other.name, other.version) == ("torch", f"{torch.version}+cpu")
    assert not set(other.hashes) & set(torch.hashes)


def test_constraints_are_the_versions_of_the_lock(locked):
    from packaging.requirements import Requirement

    lines = locked.CONSTRAINTS.read_text(encoding="utf-8").splitlines()[2:]
    pins = {
        (str(r.specifier), locked.key(r.name), str(r.marker or "")) for r in map(Requirement, lines)
    }
    assert pins == {(f"=={p.version}", p.name, p.marker) for p in locked.everything()}
    assert len(lines) == len(pins)


def test_the_licence_of_every_package_is_known(locked):
    assert list(locked.licences()) == [p.pin for p in locked.everything()]


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
    assert len(installs) >= 4
    for words in map(str.split, installs):
        assert {"--no-deps", "--no-build-isolation"} <= set(words)
        if words[-2:] != ["-e", "."]:
            assert "--require-hashes" in words
            assert words[-2] == "-r"
            assert words[-1] in WRITTEN


def test_the_bill_lists_what_the_wheel_needs(locked, bill):
    entries = {entry["bom-ref"]: entry for entry in bill["components"]}
    packages = {f"pkg:pypi/{p.name}@{p.version}": p for p in locked.everything()}
    assert set(entries) <= set(packages)
    extras = ("train", "text", "triton", "hf", "onnx")
    possible = [p for p in packages.values() if any(map(p.holds_in, locked.ENVIRONMENTS))]
    wanted = locked.closure(locked.roots(extras), possible)
    always = locked.closure(locked.roots(()), possible)
    assert {entry["name"] for entry in entries.values()} == wanted
    assert {"torch", "numpy", "safetensors", "jaxtyping", "filelock"} <= always < wanted
    for reference, entry in entries.items():
        package = packages[reference]
        assert entry["version"] == package.version
        assert [h["content"] for h in entry["hashes"]] == list(package.hashes)
        assert (entry["scope"] == "required") == (entry["name"] in always)


def test_the_bill_states_licences(locked, bill):
    known = locked.licences()
    for entry in bill["components"]:
        text = known[f"{entry['name']}=={entry['version']}"]
        stated = entry.get("licenses", [{"expression": "nothing to license"}])
        (licence,) = (s.get("expression") or next(iter(s["license"].values())) for s in stated)
        assert licence == text


def test_the_bill_is_of_this_version_and_connected(locked, bill):
    whole = bill["metadata"]["component"]
    table = locked.project()
    assert (whole["name"], whole["version"]) == (table["name"], table["version"])
    graph = {d["ref"]: d.get("dependsOn", []) for d in bill["dependencies"]}
    reached, waiting = set(), [whole["bom-ref"]]
    while waiting:
        reference = waiting.pop()
        if reference not in reached:
            reached.add(reference)
            waiting += graph[reference]
    assert reached == {whole["bom-ref"], *(entry["bom-ref"] for entry in bill["components"])}


def test_the_bill_has_no_time_in_it(bill):
    assert "timestamp" not in bill["metadata"]


def test_every_package_is_asked_about(locked):
    packages = locked.everything()
    lists = tool("vulnerabilities").lists(packages)
    assert sorted(pin for pins in lists for pin in pins) == sorted(p.pin for p in packages)
    for pins in lists:
        names = [pin.partition("==")[0] for pin in pins]
        assert len(names) == len(set(names))
        assert not [pin for pin in pins if ";" in pin]
