"""`make release` refuses what is not a release, and goes on to the next point where one is open."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tomllib")  # Python 3.11

ROOT = Path(__file__).parents[1]
CITATION = "cff-version: 1.2.0\nversion: 1.2.0\ndate-released: 2030-01-02\n"


def git(folder, *words):
    person = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path):
    """A project of one commit with the script."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release.py", tmp_path / ".ci")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0, 2030-01-02\n")
    (tmp_path / "CITATION.cff").write_text(CITATION)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "All")
    return tmp_path


@pytest.fixture
def release(clone, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / ".ci")
    module = importlib.import_module("release")
    monkeypatch.setattr(module, "ROOT", clone)
    monkeypatch.setitem(module.run.__kwdefaults__, "folder", clone)
    return module


def test_a_tree_with_changes_is_refused_and_nothing_is_made(clone):
    (clone / "new.txt").write_text("x")
    command = [sys.executable, ".ci/release.py"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the tree must be clean, got\n?? new.txt" in done.stderr
    assert not (clone / "dist").exists()


def test_the_address_of_the_source_is_known_and_in_the_readme(release, clone):
    real = release.Release("1.2.0", rehearsal=False)
    assert release.address_is_known(release.Release("1.2.0", rehearsal=True)) == "none yet"
    with pytest.raises(release.OpenPointError, match="Repository among"):
        release.address_is_known(real)
    address = "https://example.org/x"
    with (clone / "pyproject.toml").open("a") as file:
        file.write(f'urls.Repository = "{address}"\n')
    (clone / "README.md").write_text("git clone ADDRESS\n")
    with pytest.raises(release.OpenPointError, match="README"):
        release.address_is_known(real)
    (clone / "README.md").write_text(f"git clone {address}\n")
    assert release.address_is_known(real) == address


def test_versions_that_agree(release):
    assert release.versions_agree(release.Release("1.2.0", rehearsal=False)) == "1.2.0, 2030-01-02"


@pytest.mark.parametrize(
    ("file", "old", "new", "rule"),
    [
        ("CHANGELOG.md", "1.2.0", "1.1.0", "CHANGELOG.md must begin with 1.2.0, got 1.1.0"),
        ("CHANGELOG.md", "2030-01-02", "unreleased", "must say the date of 1.2.0"),
        ("CITATION.cff", "version: 1.2.0", "version: 1.1.0", "must have version 1.2.0"),
        ("CITATION.cff", "2030-01-02", "2030-01-01", "must have date-released: 2030-01-02"),
    ],
)
def test_versions_that_do_not_agree_are_named(release, clone, file, old, new, rule):
    path = clone / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(release.OpenPointError, match=rule):
        release.versions_agree(release.Release("1.2.0", rehearsal=False))


def test_a_tag_that_is_there_is_named(release, clone):
    git(clone, "tag", "v1.2.0")
    with pytest.raises(release.OpenPointError, match=r"the tag v1\.2\.0 is there"):
        release.versions_agree(release.Release("1.2.0", rehearsal=True))


def test_a_rehearsal_needs_no_date(release, clone):
    path = clone / "CHANGELOG.md"
    path.write_text(path.read_text().replace("2030-01-02", "unreleased"))
    assert "unreleased" in release.versions_agree(release.Release("1.2.0", rehearsal=True))


def test_points_behind_an_open_one_are_open_and_say_why(release, capsys):
    new = release.Release("1.2.0", rehearsal=True)
    assert not release.tried(release.tests_pass, new)
    assert capsys.readouterr().out == "[ ] tests pass: there is no python\n"


def test_a_command_that_fails_is_the_reason(release):
    words = ("-c", "import sys; print('what went wrong'); sys.exit(3)")
    with pytest.raises(release.OpenPointError, match="failed\n      what went wrong"):
        release.run(sys.executable, *words)
