"""The command itself: help, exit codes, errors, and how fast it starts."""

import pytest

from linrnn import __version__, cli


def test_help_lists_every_verb(command):
    done = command("--help")
    assert done.returncode == 0
    for verb, summary in cli.verbs().items():
        assert f"  {verb}" in done.stdout
        assert summary in done.stdout


def test_no_verb_prints_help_and_is_a_wrong_command(command):
    done = command()
    assert done.returncode == 2
    assert "usage: linrnn VERB" in done.stdout


def test_version(command):
    assert command("--version").stdout == f"linrnn {__version__}\n"


def test_version_is_that_of_pyproject(root):
    assert f'\nversion = "{__version__}"\n' in (root / "pyproject.toml").read_text()


def test_misspelt_verb_is_a_wrong_command(command):
    done = command("lisst")
    assert done.returncode == 2
    assert done.stderr.startswith("linrnn: no verb named 'lisst'. Did you mean 'list'? Known: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        ("linrnn.errors.BackendError('scan: no.')", 1, "linrnn: scan: no.\n"),
        ("linrnn.errors.ArgumentError('scan: no.')", 2, "linrnn: scan: no.\n"),
        ("KeyboardInterrupt", 130, "linrnn: interrupted\n"),
    ],
)
def test_what_a_verb_raises_decides_the_exit_code(python, raised, code, text):
    script = f"""
import contextlib, io, linrnn.cli, linrnn.cli.doctor, linrnn.errors
def fail(argv):
    raise {raised}
linrnn.cli.doctor.main, stderr = fail, io.StringIO()
with contextlib.redirect_stderr(stderr):
    result = [linrnn.cli.main(["doctor"]), stderr.getvalue()]
"""
    assert python(script) == [code, text]


def test_verbs_run_one_after_the_other_in_one_process(python):
    # a verb's module becomes an attribute of the package: `list` must not hide the builtin
    code = "from linrnn import cli; result = [cli.main(['list', k]) for k in ('mixers', 'tasks')]"
    assert python(code) == [0, 0]


@pytest.mark.parametrize("verb", cli.verbs())
def test_help_of_every_verb(command, verb):
    done = command(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: linrnn {verb}" in done.stdout


@pytest.mark.parametrize("verb", ["list", "show", "doctor"])
def test_unknown_option_is_a_wrong_command(command, verb):
    done = command(verb, "--nonsense")
    assert done.returncode == 2
    assert "--nonsense" in done.stderr or "required" in done.stderr


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["list", "mixers"], ["list"]])
def test_light_commands_import_no_other_package(packages, argv):
    assert packages(f"import linrnn.cli; assert linrnn.cli.main({argv}) == 0") == ["linrnn"]
