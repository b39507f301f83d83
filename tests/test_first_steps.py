"""A newcomer's first minutes: a fresh clone, an empty environment, the first pages."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/getting-started.md")
BASH = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shell(script, folder):
    """A script of bash whose environment holds the path of the system, and where packages are."""
    packages = {name: x for name, x in os.environ.items() if name.startswith(("PIP_", "XDG_"))}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={"HOME": os.path.expanduser("~"), "PATH": os.defpath, **packages},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def first_texts():
    """Getting started, and README as far as its examples, behind which runs take hours."""
    readme, start = ((ROOT / page).read_text() for page in PAGES)
    return [readme.partition("\n## Example")[0], start]


def printed_commands(output):
    """The next commands that a run prints, but for the one that serves until it is stopped."""
    lines = output.partition("Next:\n")[2].splitlines()
    commands = [line.strip() for line in lines if line.startswith("  ")]
    return [command for command in commands if "tensorboard" not in command]


@pytest.mark.slow
def test_a_fresh_clone_does_what_the_first_pages_print(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    first = shell("make quickstart", clone)
    accuracy = float(re.search(r"test accuracy (\S+) %", first)[1])
    assert accuracy > 95
    write_digits(clone)
    commands = printed_commands(first)
    assert len(commands) == 2
    for command in commands:
        assert shell(command.replace("FILE", "digits.csv"), clone)
    lines = [line for text in first_texts() for line in "".join(BASH.findall(text)).splitlines()]
    typed = [line for line in lines if line.startswith(("linrnn", "source"))]
    assert {"linrnn doctor", "linrnn train digits"} <= {*typed}
    shell("\n".join(typed), clone)
    run = commands[0].split()[-1]
    shell(f"source .venv/bin/activate\nlinrnn export {run} model.onnx", clone)
    for page in (*PAGES, "docs/your-data.md"):
        script = "\n".join(PYTHON.findall((ROOT / page).read_text()))
        (clone / "page.py").write_text(script)
        shell(".venv/bin/python page.py", clone)


def write_digits(folder):
    code = "from sklearn.datasets import load_digits; import numpy as np; "
    code += "np.savetxt('digits.csv', load_digits().data[:5], delimiter=',')"
    shell(f'.venv/bin/python -c "{code}"', folder)
