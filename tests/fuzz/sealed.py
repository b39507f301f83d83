"""Folders that a command reads, damaged value by value and then sealed again."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from mutations import texts, trees

from linrnn import cli, train
from linrnn._files import door
from linrnn._files.storage import read_tensors, write_tensors
from linrnn.compare.usage import MemoryMeter
from linrnn.errors import InterruptedRunError
from linrnn.train import Config, ModelConfig, TrainConfig
from linrnn.train.folder import _seal

DOOR = door.__file__
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
CHANGES += ("os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile")
SMALL = ("--model.d-model", "3", "--model.n-layers", "1", "--train.epochs", "1")
COMPARE = ("compare", "table", "--mixers", "lru:d_state=2", "--seeds", "1", "--out", "RUN")
COMPARE += ("--task.data", "MADE/rows.csv", "--train.threads", "1", *SMALL)
ROWS = "".join(f"{i % 3},{i % 5},{i % 7},{'ab'[i % 2]}\n" for i in range(40))


class Watch:
    """Notes every file that Python opens for writing, moves or removes outside some folders."""

    def __init__(self) -> None:
        self.inside: tuple[str, ...] | None = None
        self.outside: list[str] = []
        sys.addaudithook(self._see)

    @contextlib.contextmanager
    def __call__(self, *folders: Path) -> Iterator[None]:
        self.inside, self.outside = tuple(f"{f}{os.sep}" for f in folders), []
        try:
            yield
        finally:
            self.inside = None
        assert not self.outside, f"files outside were touched: {self.outside}"

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if self.inside is None or (event != "open" and event not in CHANGES):
            return
        paths = args[:1]
        if event == "open":
            path, _, flags = args
            if isinstance(path, int) or not (flags or 0) & WRITES:
                return
        elif event in ("os.rename", "os.link", "shutil.move", "shutil.copyfile"):
            paths = args[1:2]  # what is copied or moved from the folder stays what it was
        # a name below an open folder, of which the event does not say which it is
        caller = sys._getframe(1)
        below = caller.f_locals.get("self") if caller.f_code.co_filename == DOOR else None
        for path in paths:
            name = os.path.abspath(os.path.join(getattr(below, "path", ""), os.fsdecode(path)))
            if name != os.devnull and not f"{name}{os.sep}".startswith(self.inside):
                self.outside.append(f"{event} {name}")


WATCH = Watch()


@dataclass(frozen=True)
class Answer:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


def command(argv: list[str], stdin: bytes = b"") -> Answer:
    """Run the command in this process; whatever it raises but its own exit goes through."""
    place = Path(os.environ["LINRNN_DATA"]) / "stdin"
    place.write_bytes(stdin)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        place.open("rb") as file,
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for name, stream in (("stdin", file), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stream)
        try:
            code = cli.main(argv)
        except SystemExit as error:
            code = int(error.code or 0)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="replace"))
    return Answer(code, *texts)


def options(**train_options: Any) -> dict[str, Any]:
    """Options of a tiny run."""
    return {
        "model": ModelConfig(d_model=3, n_layers=1, norm="layer"),
        "mixer_options": {"d_state": 2},
        "train": TrainConfig(**{"epochs": 2, "batch_size": 8, "threads": 1, **train_options}),
    }


class Stop(train.Reporter):
    """Stops after the first epoch."""

    def epoch_done(self, report: train.EpochReport) -> None:
        os.kill(os.getpid(), 2)


def _train(config: Config, out: Path, **changed: Any) -> None:
    config = replace(config, task_options=replace(config.task_options, **changed))
    with contextlib.suppress(InterruptedRunError):
        train.run(config, out=out, reporter=Stop())


def make(place: Path) -> None:
    """Runs of every kind that is read, in a folder that is to be copied."""
    (place / "rows.csv").write_text(ROWS)
    (place / "ask.csv").write_text("1,2,3\n0,1,2\n")
    (place / "a.txt").write_text("to be or not to be, that is it\n" * 20)
    rows = str(place / "rows.csv")
    table = replace(Config(task="table", **options()), seed=1)
    _train(table, place / "table", data=rows)
    _train(replace(table, train=replace(table.train, epochs=1)), place / "done", data=rows)
    lm = options()
    lm["model"] = replace(lm["model"], pool="none")
    for kind in ("char", "bpe"):
        words = {"data": (str(place / "a.txt"),), "tokenizer": kind, "length": 8}
        _train(Config(task="lm", **lm), place / kind, **words, vocabulary_size=260)
    sizes = {"train_size": 16, "validation_size": 8, "test_size": 8, "length": 4, "delay": 2}
    reverse = {**lm, "train": TrainConfig(epochs=2, batch_size=8, threads=1, on_nan="rollback")}
    _train(Config(task="reverse", **reverse), place / "reverse", **sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linrnn.compare._runs.train_in_process", _train_here)
        assert command(spelt(COMPARE, place, place, place / "compare")).code == 0
    for kind, said in (("table", b"1\n2\n"), ("char", b"to be\n"), ("bpe", b"to be\n")):
        state = str(place / f"{kind}.state")
        assert command(["stream", str(place / kind), "--state", state], said).code == 0


def _train_here(folder: Path, config: Config, jobs: int) -> None:
    train.run(config, out=folder, reporter=MemoryMeter())


def spelt(words: tuple[str, ...], made: Path, here: Path, run: Path) -> list[str]:
    """A command with the paths that some of its words stand for."""
    paths = {"MADE": made, "HERE": here, "RUN": run}
    for name, path in paths.items():
        words = tuple(word.replace(name, str(path)) for word in words)
    return list(words)


@dataclass(frozen=True)
class Case:
    """A command, and the file that is damaged before it runs."""

    kind: str
    """The kind of run folder."""
    file: str
    verb: tuple[str, ...]
    """RUN stands for the folder, HERE for the one around it, MADE for that it is a copy of."""
    stdin: bytes = b""


def run_files(kind: str) -> list[str]:
    """Files of a run folder that a command reads."""
    kept = ["tokenizer.json", "text.json"] if kind in ("char", "bpe") else []
    return ["config.json", "model.safetensors", *kept]


def _cases() -> list[Case]:
    found = []
    for kind in ("table", "done", "char", "bpe", "reverse"):
        uses: list[tuple[tuple[str, ...], bytes]] = [(("eval", "RUN", "--examples", "2"), b"")]
        if kind in ("char", "bpe"):
            uses.append((("generate", "RUN", "--prompt", "to", "--max-new-tokens", "4"), b""))
            uses.append((("stream", "RUN"), b"to be\n"))
            uses.append((("eval", "RUN", "--lengths", "4", "--examples", "2"), b""))
        elif kind != "reverse":
            uses.append((("predict", "RUN", "HERE/ask.csv"), b""))
            uses.append((("stream", "RUN"), b"1\n2\n"))
        found += [Case(kind, file, *use) for file in run_files(kind) for use in uses]
        last = "checkpoints/last.safetensors"
        resumed = [*run_files(kind), last, last, last, "checkpoints/best.safetensors"]
        resumed += ["metrics.csv"] if kind != "done" else ["result.json"] * 3
        resumed += ["checkpoints/epoch.safetensors"] if kind == "reverse" else []
        found += [Case(kind, file, ("train", "--resume", "RUN")) for file in resumed]
    for kind, said in (("table", b"1\n2\n"), ("char", b"to\n"), ("bpe", b"to\n")):
        state = ("stream", "RUN", "--state", f"HERE/{kind}.state")
        found += [Case(kind, f"../{kind}.state", state, said)] * 3
    return found


CASES = _cases()
COMPARED = [
    Case("compare", f"lru_d_state=2-seed0/{file}", COMPARE)
    for file in ("result.json", "result.json", "usage.json", "metrics.csv", "config.json")
]


@st.composite
def damage(draw: Any, folder: Path, cases: list[Case]) -> tuple[Case, dict[str, bytes]]:
    """A case, and the files of its folder that were changed for it."""
    case = draw(st.sampled_from(cases))
    path = folder / case.kind / case.file
    if path.suffix in (".safetensors", ".state"):
        return case, {case.file: draw(tensor_file(path))}
    if path.suffix == ".csv":
        return case, {case.file: draw(texts(path.read_text(), separators=","))}
    tree = json.loads(path.read_text())
    if path.name == "config.json":
        tree["config"] = draw(trees(tree["config"], least=1))
        tree["sha256"] = _seal(tree["config"])
        return case, {case.file: _dump(tree)}
    if path.name == "result.json":
        tree.pop("sha256")
        tree = draw(trees(tree, least=1))
        tree = tree | {"sha256": _seal(tree)} if isinstance(tree, dict) else tree
        return case, {case.file: _dump(tree)}
    data = _dump(draw(trees(tree, least=1)))
    if path.name == "usage.json":
        return case, {case.file: data}
    config = json.loads((path.parent / "config.json").read_text())
    config["files"][path.name] = hashlib.sha256(data).hexdigest()
    return case, {case.file: data, "config.json": _dump(config)}


def _dump(tree: Any) -> bytes:
    return json.dumps(tree).encode()


@st.composite
def tensor_file(draw: Any, path: Path) -> bytes:
    """Tensors and JSON of a file, of which some were changed, under a checksum that is true."""
    tensors, metadata = read_tensors(path, inside=None)
    kind = draw(st.integers(0, 3)) if metadata else 3
    if kind <= 2:
        name = draw(st.sampled_from(sorted(metadata)))
        metadata[name] = json.dumps(draw(trees(json.loads(metadata[name]), least=1)))
    else:
        name = draw(st.sampled_from(sorted(tensors)))
        tensors |= draw(changed(name, tensors[name]))
        tensors = {k: x.contiguous() for k, x in tensors.items() if x is not None}
    other = path.with_name(f"{path.name}.changed")
    write_tensors(other, {k: x.clone() for k, x in tensors.items()}, metadata)
    data = other.read_bytes()
    other.unlink()
    return data


@st.composite
def changed(draw: Any, name: str, x: torch.Tensor) -> dict[str, Any]:
    """Another tensor, name or nothing in its place."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return {name: None}
    if kind == 1:
        return {name: None, draw(st.sampled_from(("x", "", "blocks.9.x", "é", "t99"))): x}
    if kind == 2:
        dtype = draw(st.sampled_from((torch.int64, torch.bool, torch.float64, torch.bfloat16)))
        return {name: x.to(dtype)}
    if kind == 3:
        shape = draw(st.sampled_from(((), (0,), (1,), (7, 1), (2, 3, 4))))
        return {name: torch.ones(shape, dtype=x.dtype)}
    if kind == 4:
        return {name: x.flatten()}
    value = draw(st.sampled_from((0, 1, -1, 1e38, float("nan"), float("inf"), 1e-320)))
    return {name: torch.full_like(x, value) if x.is_floating_point() else x * 0}


def sandbox(made: Path, place: Path, case: Case, files: dict[str, bytes]) -> list[str]:
    """Copy what a case needs, put the damaged files in, and spell the command out."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    run = place / case.kind
    shutil.copytree(made / case.kind, run)
    for other in ("ask.csv", f"{case.kind}.state"):
        if (made / other).is_file():
            shutil.copy(made / other, place / other)
    for name, data in files.items():
        (run / name).write_bytes(data)
    return spelt(case.verb, made, place, run)
