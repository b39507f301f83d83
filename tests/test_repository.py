"""Files for a forge, a referee and a package index are valid, and agree with the project."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
tomllib = pytest.importorskip("tomllib")  # Python 3.11

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SCHEMAS = {
    "citation-file-format": ("CITATION.cff",),
    "github-issue-forms": tuple(
        f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "slow", "system")
    ),
    "github-issue-config": (".github/ISSUE_TEMPLATE/config.yml",),
    "github-workflows": (".github/workflows/test.yml", ".github/workflows/wheels.yml"),
}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def validate(schema, files):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    return subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_a_forge_are_valid(schema):
    pytest.importorskip("check_jsonschema")
    done = validate(schema, SCHEMAS[schema])
    assert done.returncode == 0, done.stdout


def test_every_such_file_is_checked():
    found = {str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.yml")}
    assert found == {name for files in SCHEMAS.values() for name in files} - {"CITATION.cff"}


def test_a_wrong_file_is_noticed(tmp_path):
    pytest.importorskip("check_jsonschema")
    wrong = tmp_path / "CITATION.cff"
    wrong.write_text(read("CITATION.cff").replace("type: software", "type: program"))
    assert validate("citation-file-format", [str(wrong)]).returncode == 1


def test_citation_is_of_this_version():
    citation, project = yaml.safe_load(read("CITATION.cff")), PROJECT["project"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert [person["name"] for person in citation["authors"]] == [
        person["name"] for person in project["authors"]
    ]


def test_changelog_begins_with_this_version():
    newest = re.search(r"^## (\S+),", read("CHANGELOG.md"), re.MULTILINE)
    assert newest[1] == PROJECT["project"]["version"]


def jobs(name):
    return yaml.safe_load(read(f".github/workflows/{name}.yml"))["jobs"]


def entries(job):
    """Every combination of a matrix, as its `include` and its axes give them."""
    matrix = job["strategy"]["matrix"]
    axes = [{"python": python} for python in matrix.get("python", ())]
    return axes + matrix.get("include", [])


def test_every_supported_python_is_tested():
    classifiers = PROJECT["project"]["classifiers"]
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    assert tuple(declared) == PYTHONS
    tested = {entry["python"] for entry in entries(jobs("test")["locked"])}
    assert tested == set(PYTHONS)
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"


def test_the_oldest_pytorch_and_the_newest_are_tested():
    (needed,) = (name for name in PROJECT["project"]["dependencies"] if name.startswith("torch"))
    tested = {entry["torch"] for entry in entries(jobs("test")["pytorch"])}
    assert {f"torch=={needed.partition('>=')[2]}.*", "torch"} <= tested


def test_wheels_are_built_for_every_system():
    made = {
        (entry["system"].split("-")[0], entry["archs"])
        for entry in entries(jobs("wheels")["wheels"])
    }
    assert made == {
        *(("ubuntu", "x86_64"), ("ubuntu", "aarch64"), ("macos", "x86_64"), ("macos", "arm64")),
        *(("windows", "AMD64"), ("windows", "ARM64")),
    }
    assert PROJECT["tool"]["cibuildwheel"]["build"] == ["cp310-*", "cp314-*"]


def test_workflows_run_what_there_is():
    targets = re.findall(r"^([a-z][a-z-]*):", read("Makefile"), re.MULTILINE)
    for name in ("test", "wheels"):
        text = read(f".github/workflows/{name}.yml")
        assert set(re.findall(r"make ([a-z-]+)", text)) <= set(targets)
        for file in re.findall(r"(?:run: |&& )(\.ci/\w+)|(tests/\S+?)\b(?= )", text):
            assert (ROOT / "".join(file)).exists()


def test_readme_and_policy_name_the_versions_that_are_declared():
    (torch,) = (n for n in PROJECT["project"]["dependencies"] if n.startswith("torch"))
    oldest = torch.partition(">=")[2]
    for page in ("README.md", "docs/support.md"):
        assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in read(page), page
        assert f"PyTorch {oldest} or newer" in read(page), page


NATIVE_NAMES = {
    "enumerators": re.compile(r"enum\s*(?:class)?\s*\w*\s*(?::\s*\w+)?\s*\{(.*?)\}", re.DOTALL),
    "parameters": re.compile(r"template\s*<(.*?)>", re.DOTALL),
}


def hidden_enumerators(source):
    """Enumerators of a native source that a template parameter of it hides."""
    source = re.sub(r"//.*", "", source)
    enumerators = {
        name
        for body in NATIVE_NAMES["enumerators"].findall(source)
        for name in re.findall(r"\b([A-Z][A-Z0-9_]*)\b", body)
    }
    parameters = {
        name
        for body in NATIVE_NAMES["parameters"].findall(source)
        for name in re.findall(r"(?:bool|int|i64|class|typename)\s+(\w+)", body)
    }
    return enumerators & parameters


def test_no_template_parameter_hides_an_enumerator():
    """A place in a kernel's memory was once read as the number 1 for that, without a warning."""
    assert hidden_enumerators("enum { A, ADDED }; template <bool ADDED> void f();") == {"ADDED"}
    files = [p for p in (ROOT / "src" / "native").rglob("*") if p.suffix in (".h", ".cpp")]
    hidden = {p.name: hidden_enumerators(p.read_text(encoding="utf-8")) for p in files}
    assert {name: names for name, names in hidden.items() if names} == {}
