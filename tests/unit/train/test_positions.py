import csv
import math
from dataclasses import replace

import pytest
import torch

from linrnn import train
from linrnn.cli import main
from linrnn.errors import ArgumentError
from linrnn.tasks.lm import LM, LMOptions
from linrnn.train import Config, ModelConfig, TrainConfig
from linrnn.train.model import build_model, build_task
from linrnn.train.positions import measure_positions


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A text of 3,890 bytes, of which a third is for validation."""
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i} of it\n" for i in range(250)))
    return Config(
        task="lm",
        mixer="lru",
        mixer_options={"d_state": 4},
        task_options=LMOptions(data=(str(path),), length=8, validation=0.34),
        model=ModelConfig(d_model=6, n_layers=1, norm="rms", dropout=0.0, pool="none"),
        train=TrainConfig(epochs=1, batch_size=16),
    )


def by_hand(model, task, carry=False):
    """(windows, length): the loss of every token of the test part."""
    x, target = task.datasets().test[range(len(task.datasets().test))]
    y, _ = model(x.reshape(1, -1) if carry else x)
    y = y.reshape(*x.shape, -1)
    return torch.nn.functional.cross_entropy(y.transpose(1, 2), target, reduction="none").detach()


@pytest.mark.parametrize("length", [1, 2, 8, 37])
def test_the_mean_is_over_windows_and_neighbouring_positions(config, length):
    task = build_task(config).at_length(length)
    model = build_model(config, task).eval()
    found = measure_positions(model, task, 16)
    assert [found[0].first, found[-1].last] == [1, length]
    for p, after in zip(found, [*found[1:], None], strict=True):
        assert after is None or after.first == p.last + 1
        part = by_hand(model, task)[:, p.first - 1 : p.last].mean(1)
        assert p.loss == pytest.approx(part.mean().item(), rel=1e-4)
        assert p.standard_error == pytest.approx(part.std().item() / len(part) ** 0.5, rel=1e-3)
        assert p.windows == len(part)


def test_chunks_change_nothing(config, monkeypatch):
    task = build_task(config).at_length(64)
    model = build_model(config, task).eval()
    whole = measure_positions(model, task, 16)
    monkeypatch.setattr("linrnn.train.positions.CHUNK", 10)
    for a, b in zip(measure_positions(model, task, 16), whole, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)


def test_a_carried_state_is_a_context_for_the_first_position(config):
    task = build_task(config)
    model = build_model(config, task).eval()
    found = measure_positions(model, task, 1, carry=True)
    expected = by_hand(model, task, carry=True)
    assert found[0].loss == pytest.approx(expected[:, 0].mean().item(), rel=1e-4)
    assert found[0].loss != measure_positions(model, task, 1)[0].loss


def test_run_is_looked_at_beyond_its_training_length(config, tmp_path, capsys):
    result = train.run(config, out=tmp_path / "run")
    found = train.loss_by_position(result.folder)
    assert found[-1].last == 8 * 16
    assert found[0].windows >= 8
    own = train.loss_by_position(result.folder, length=8)
    mean = sum(p.loss * (p.last - p.first + 1) for p in own) / 8
    assert mean == pytest.approx(result.test_loss, rel=1e-4)
    capsys.readouterr()
    assert main(["eval", str(result.folder)]) == 0
    out = capsys.readouterr().out
    assert f"perplexity {math.exp(result.test_loss):.4g} per token, " in out
    with (result.folder / "positions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == pytest.approx([p.loss for p in found], rel=1e-4)
    assert [int(row["first"]) for row in rows] == [p.first for p in found]
    for ending in ("png", "svg"):
        assert (result.folder / f"positions.{ending}").stat().st_size > 1000


def test_a_run_that_carries_its_state_is_looked_at_as_it_was_trained(config, tmp_path):
    config = replace(config, train=replace(config.train, carry_state=True))
    result = train.run(config, out=tmp_path / "run")
    found = train.loss_by_position(result.folder)
    assert found[-1].last == 8
    assert found[0].loss != train.loss_by_position(result.folder, carry=False, length=8)[0].loss
    mean = sum(p.loss * (p.last - p.first + 1) for p in found) / 8
    assert mean == pytest.approx(result.test_loss, rel=1e-4)
    assert train.loss_by_position(result.folder, carry=False)[-1].last == 8 * 16


def test_short_texts_are_looked_at_as_far_as_they_go(config):
    options = replace(config.task_options, validation=0.1)
    task = LM(options)
    assert len(task.datasets().test) // 4 < 16
    assert train.positions._longest(task) == 8 * 4


@pytest.mark.unchecked
def test_what_cannot_be_looked_at(config, finished, tmp_path):
    with pytest.raises(ArgumentError, match="must be of a language model, got the task digits"):
        train.loss_by_position(finished.folder)
    options = {"mixer": "attention", "mixer_options": {"n_heads": 1}}
    result = train.run(replace(config, **options), out=tmp_path / "run")
    with pytest.raises(ArgumentError, match=r"carry must be False, got True and the state of Att"):
        train.loss_by_position(result.folder, carry=True)
    with pytest.raises(ArgumentError, match="length must be an integer of at least 1, got 0"):
        train.loss_by_position(result.folder, length=0)
