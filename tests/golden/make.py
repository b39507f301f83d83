"""Write the golden files again: python tests/golden/make.py

They are files of this version of the formats. Keep them as they are while `FORMAT` in
`linrnn.train.folder`, `linrnn.state` and the tokenizers stays the same: a change that cannot read
them breaks what users have on their disks. When a format rises, put the new files beside these.
"""

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from linrnn import tokenizers, train
from linrnn.errors import InterruptedRunError
from linrnn.streaming import Session
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

HERE = Path(__file__).parent
TEXT = "to be, or not to be, that is the question\n"
KEPT = ("config.json", "metrics.csv", "model.safetensors", "result.json")
CHECKPOINTS = ("last.safetensors", "best.safetensors")


def rows(steps: int) -> torch.Tensor:
    """The same numbers everywhere, without a random generator: (1, steps, 1)."""
    return torch.arange(1, steps + 1).mul(0.7).sin()[None, :, None]


def digits() -> Config:
    """A finished run."""
    return Config(
        task="digits",
        mixer_options={"d_state": 3},
        model=ModelConfig(d_model=4, n_layers=1),
        optim=OptimConfig(lr=1e-2),
        train=TrainConfig(epochs=1, batch_size=256, threads=1),
    )


def language() -> Config:
    """A run that was stopped after the first of two epochs; it is in the folder of its text."""
    config = Config(
        task="lm",
        mixer="mingru",
        model=ModelConfig(d_model=4, n_layers=1, norm="layer", pool="none"),
        train=TrainConfig(epochs=2, batch_size=8, threads=1),
    )
    options = replace(config.task_options, data=("text.txt",), tokenizer="char", length=16)
    return replace(config, task_options=options)


class _Stop(train.Reporter):
    def epoch_done(self, report: train.EpochReport) -> None:
        os.kill(os.getpid(), 2)


def _thin(run: Path, place: Path) -> None:
    """Keep of a run what is read again."""
    (place / "checkpoints").mkdir(parents=True)
    for name in (*KEPT, "tokenizer.json", "text.json", *(f"checkpoints/{c}" for c in CHECKPOINTS)):
        if (run / name).is_file():
            shutil.copy(run / name, place / name)


def main() -> None:
    """Train, thin out, and record what comes out."""
    os.chdir(HERE)
    os.environ["LINRNN_DATA"] = str(HERE / "runs")
    for old in ("digits", "language"):
        shutil.rmtree(old, ignore_errors=True)
    Path("text.txt").write_text(TEXT * 20)
    result = train.run(digits(), out="runs/digits")
    with contextlib.suppress(InterruptedRunError):
        train.run(language(), out="runs/language", reporter=_Stop())
    for name in ("digits", "language"):
        _thin(Path("runs", name), Path(name))
    shutil.rmtree("runs")

    model, _, _ = train.load_model("digits")
    session = Session(model)
    session.feed(rows(40)[0])
    session.save("session.safetensors")
    bpe = tokenizers.make("bpe", iter([TEXT * 20]), 270)
    Path("bpe.json").write_text(bpe.to_json())
    text = TEXT[:20]
    with torch.no_grad():
        expected = {
            "outputs": model(rows(64))[0].tolist(),
            "after the session": session.feed(rows(3)[0]).tolist(),
            "test_metric": result.test_metric,
            "bpe": bpe.encode(text).tolist(),
            "char": tokenizers.load(Path("language/tokenizer.json")).encode(text).tolist(),
        }
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
