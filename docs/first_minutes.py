"""Follow README.md as a newcomer does: `python docs/first_minutes.py`.

Clones what is committed into an empty folder, types each command of README.md in fresh
environments, and evaluates each Python expression of its table. Commands are read from README.md,
so there is no second copy of them. Printed are the seconds of a clock and of processors, and the
first lines of output. Exits with 1 if a command fails. Needs a network for the installation.

Commands that run longer than the limit are stopped by Ctrl-C; then exit code 130 is right. A
command that lacks an optional package is right if its error says what to install. RUN is the
newest run folder. Needs no package, so any Python can start it.
"""

import argparse
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
INSTALLS = ("make ", "pip install", "source ")
INSTALL_LIMIT = 3600
"""Seconds: a machine that compiles for somebody else as well may be slow."""
INTERRUPTED = (0, 130, -signal.SIGINT)
PATIENCE = 30
"""Seconds from Ctrl-C to the end of a command."""
SHOWN = 6
"""Lines of output printed of a command."""
ENDLESS = ("linrnn serve",)
PREPARE = """
import math
import linrnn
series = [math.sin(t / 4) for t in range(400)]
model = linrnn.SequenceModel(1, 1)
"""
"""Names that expressions of README.md use."""


@dataclass
class Result:
    """How a command ended."""

    command: str
    code: int
    seconds: float
    processor: float
    output: str
    stopped: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def lacks_package(self) -> bool:
        """Whether an error names a package to install."""
        return "pip install" in self.output.strip().rpartition("\n")[2]

    @property
    def failed(self) -> bool:
        """Whether a newcomer would be stuck here."""
        if self.notes:
            return True
        if self.stopped:
            return self.code not in INTERRUPTED
        return self.code != 0 and not self.lacks_package

    def __str__(self) -> str:
        word = "FAIL" if self.failed else "stop" if self.stopped else "ok"
        word = "lack" if word == "ok" and self.code else word
        times = f"{self.seconds:7.1f} s {self.processor:7.1f} s of processors"
        lines = self.output.strip().splitlines()
        lines = lines if self.failed else [*lines[:SHOWN], *(["..."] if lines[SHOWN:] else [])]
        indented = [f"       {line[:110]}" for line in [*self.notes, *lines[-40:]]]
        return "\n".join([f"{word:4} {times}  $ {self.command}", *indented])


class Reader:
    """A newcomer at a shell: a folder, an environment, and what was typed so far."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder = folder
        self.limit = limit
        self.results: list[Result] = []
        packages = {name: x for name, x in os.environ.items() if name.startswith(("PIP_", "XDG_"))}
        home = folder / "home"
        home.mkdir()
        self.environment = {"HOME": str(home), "PATH": os.defpath, **packages}

    def activate(self, environment: Path) -> None:
        """Activate an environment as `source .venv/bin/activate` does."""
        self.environment["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.defpath}"

    def type(
        self, command: str, folder: Path, words: list[str] | None = None, text: str = ""
    ) -> Result:
        """Run a command, with Ctrl-C after the limit."""
        install = command.startswith((*INSTALLS, "git "))
        before, started = _processor(), time.monotonic()
        process = subprocess.Popen(
            words or ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # in the background of a script a shell ignores Ctrl-C, and commands would inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        stopped, notes = False, []
        try:
            output, _ = process.communicate(text, INSTALL_LIMIT if install else self.limit)
        except subprocess.TimeoutExpired:
            stopped = True
            os.killpg(process.pid, signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                notes = [f"did not end within {PATIENCE} s of Ctrl-C"]
        took = time.monotonic() - started
        result = Result(
            command, process.returncode, took, _processor() - before, output, stopped, notes
        )
        self.keep(result)
        return result

    def keep(self, result: Result) -> None:
        """Print a result."""
        self.results.append(result)
        say(str(result))


def say(text: str) -> None:
    """Print at once, also into a file."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _processor() -> float:
    """Seconds of processors of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sections(text: str) -> dict[str, str]:
    """The text below each heading of level two."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def shell_lines(text: str) -> list[str]:
    """The commands of its blocks of bash, without their comments."""
    blocks = [body for language, body in BLOCK.findall(text) if language == "bash"]
    lines = [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def spans(text: str) -> tuple[list[str], list[str]]:
    """Commands and Python expressions written as code in a table and in the text around it."""
    prose = BLOCK.sub("", text)
    found = list(dict.fromkeys(SPAN.findall(prose)))
    return (
        [code for code in found if code.startswith("linrnn ")],
        [code for code in found if code.startswith("linrnn.")],
    )


def make_data(folder: Path) -> None:
    """A small table and a small text, as a user might have."""
    draw = random.Random(0)
    rows = []
    for i in range(120):
        name, period = (("five", 5), ("seven", 7))[i % 2]
        values = (f"{t % period + draw.gauss(0, 0.3):.3f}" for t in range(30))
        rows.append(",".join([*values, name]))
    (folder / "rows.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    animals, verbs = ("cat", "dog", "bird", "fish"), ("sat", "ran", "ate", "slept")
    lines = (f"The {draw.choice(animals)} {draw.choice(verbs)} here." for _ in range(4000))
    (folder / "book.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def install(reader: Reader, lines: list[str]) -> None:
    """Clone, then type the lines: those before `source` make `.venv`, those after go elsewhere."""
    clone = reader.folder / "linrnn"
    words = ["git", "clone", "--quiet", str(ROOT), str(clone)]
    reader.type("git clone ADDRESS", reader.folder, words)
    for line in lines:
        if line.startswith("source "):
            reader.activate(clone / ".venv")
            own = reader.folder / "own"
            words = [sys.executable, "-m", "venv", str(own)]
            reader.type("python -m venv own", reader.folder, words)
            continue
        if line.startswith("pip "):
            reader.activate(reader.folder / "own")
        reader.type(line, clone)


def example(reader: Reader, text: str, folder: Path) -> None:
    """Run the example, and compare its output with the printed one up to the last digits."""
    blocks = {language: body for language, body in BLOCK.findall(text)}
    (folder / "example.py").write_text(blocks["python"], encoding="utf-8")
    result = reader.type("python example.py", folder)
    shape, _, error = blocks["text"].strip().rpartition(" ")
    shape_here, _, error_here = result.output.strip().rpartition(" ")
    same = shape == shape_here and float(error_here) <= 5 * float(error)
    if not same:
        result.notes.append(f"README.md prints {blocks['text'].strip()}")


def newest_run(folder: Path) -> str:
    """The path of the newest run folder with weights: a run that was stopped early has none."""
    runs = sorted(folder.glob("runs/*/model.safetensors"), key=lambda path: path.stat().st_mtime)
    return str(runs[-1].parent.relative_to(folder)) if runs else "RUN"


def first_uses(reader: Reader, text: str, folder: Path, only: str) -> None:
    """Type each command of the table, and evaluate its expressions."""
    commands, expressions = spans(text)
    stream = (folder / "book.txt").read_text(encoding="utf-8")[:2000]
    for command in (c for c in commands if only in c):
        if command == "linrnn check":  # it needs a name, which its page has
            command = "linrnn check lru"
        command = re.sub(r"\bRUN\b", newest_run(folder), command)
        reader.type(command, folder, text=stream if "stream" in command else "")
    for code in (e for e in expressions if only in e):
        words = ["python", "-c", f"{PREPARE}\nprint({code})"]
        reader.type(code, folder, words)


def main() -> int:
    """Follow README.md, and return 1 if a command failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="of the table, only what contains this text")
    parser.add_argument("--limit", type=float, default=120, help="seconds before Ctrl-C (120)")
    parser.add_argument("--environment", type=Path, help="an environment instead of the install")
    options = parser.parse_args()
    parts = sections((ROOT / "README.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="first-minutes-") as name:
        reader = Reader(Path(name), options.limit)
        work = Path(name) / "work"
        work.mkdir()
        make_data(work)
        if options.environment:
            reader.activate(options.environment.resolve())
        else:
            install(reader, shell_lines(parts["Install"]))
        example(reader, parts["Example"], work)
        first_uses(reader, parts["Where to go"], work, options.only)
    failed = [result.command for result in reader.results if result.failed]
    total = sum(result.seconds for result in reader.results)
    processor = sum(result.processor for result in reader.results)
    say(f"{len(reader.results)} commands, {total:.0f} s, {processor:.0f} s of processors")
    say(f"failed: {'; '.join(failed)}" if failed else "nothing failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
