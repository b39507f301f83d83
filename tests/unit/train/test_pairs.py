"""Runs of a task about pairs of documents."""

import pytest
import torch
from safetensors.torch import load_file

from linrnn import train
from linrnn.errors import InterruptedRunError
from linrnn.tasks.retrieval import RetrievalOptions


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A configuration of a run on a few made pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    for part in ("train", "eval", "test"):
        rows = [f"{i % 2}\ta\tb\t{'xy'[i % 2] * 9}\t{'x' * (3 + i)}\n" for i in range(16)]
        (folder / f"new_aan_pairs.{part}.tsv").write_text("".join(rows))
    return train.Config(
        task="retrieval",
        task_options=RetrievalOptions(data=str(folder), length=20),
        model=train.ModelConfig(d_model=8, n_layers=1),
        train=train.TrainConfig(epochs=3, batch_size=8),
    )


def test_a_run_of_pairs_resumes_and_evaluates_the_same(pairs, signal_at, tmp_path):
    whole = train.run(pairs, out=tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        train.run(pairs, out=tmp_path / "run", reporter=signal_at(3))
    resumed = train.resume(tmp_path / "run")
    assert resumed.test_loss == whole.test_loss
    ours, theirs = (load_file(tmp_path / r / "model.safetensors") for r in ("run", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again, _ = train.evaluate(tmp_path / "run")
    assert again.loss == pytest.approx(whole.test_loss, rel=1e-5)


def test_pairs_are_evaluated_in_one_pass(pairs):
    from linrnn.train._outputs import why_not_streamed
    from linrnn.train.model import build_model, build_task

    model = build_model(pairs, build_task(pairs))
    assert why_not_streamed(model) == "it compares whole documents"
