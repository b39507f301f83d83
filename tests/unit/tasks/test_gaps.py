import pytest
import torch

from linrnn import SequenceModel
from linrnn.errors import ArgumentError
from linrnn.learn._parts.batch import read, unpack
from linrnn.tasks.gaps import FIRST, LONGEST, SHORTEST, Gaps, GapsOptions
from linrnn.train import Config, ModelConfig, TrainConfig, run


def drawn(times, rows=500):
    return Gaps(GapsOptions(times=times)).datasets().train[list(range(rows))]


def test_two_heights_and_the_time_between_them_give_the_velocity():
    x, target = (v.double() for v in drawn("column"))
    height, d = x[:, 1:, 0], x[:, 1:, 1]
    found = (height * d.cos() - x[:, :-1, 0]) / d.sin()
    torch.testing.assert_close(found, target[:, 1:, 0], rtol=0, atol=1e-4)


def test_energy_is_kept_and_gaps_are_as_wide_as_they_are_said_to_be():
    x, target = drawn("column")
    energy = x[..., 0].square() + target[..., 0].square()
    torch.testing.assert_close(energy, energy[:, :1].expand_as(energy), rtol=1e-4, atol=1e-5)
    gaps = x[..., 1]
    assert gaps.min() >= SHORTEST
    assert gaps.max() <= LONGEST
    assert gaps.mean().item() == pytest.approx((SHORTEST + LONGEST) / 2, abs=0.02)
    task = Gaps()
    assert task.loss(torch.zeros_like(target), target).item() == pytest.approx(task.chance, rel=0.1)


def test_the_same_series_is_given_in_three_ways():
    (x, target), (height, same, dt), (alone, again) = map(drawn, ("column", "dt", "none"))
    assert torch.equal(x[..., :1], height)
    assert torch.equal(x[..., 1], dt)
    assert torch.equal(height, alone)
    assert torch.equal(target, same)
    assert torch.equal(target, again)


def test_the_first_observations_are_not_asked_about():
    task, (_, target) = Gaps(), drawn("column", 4)
    wrong = target.clone()
    wrong[:, :FIRST] += 1
    assert task.loss(wrong, target) == 0
    assert task.scores(wrong, target).tolist() == [0, 0, 0, 0]
    wrong[:, FIRST:] += 2
    assert task.loss(wrong, target) == 4


def test_times_are_what_a_batch_calls_dt():
    batch = unpack(drawn("dt", 3))
    assert batch.dt.shape == (3, 50)
    assert batch.lengths is batch.reset is None
    lengths, reset = torch.tensor([3, 2]), torch.zeros(2, 5, dtype=torch.bool)
    found = unpack([batch.x, batch.target, reset, batch.dt, lengths])
    assert [found.lengths, found.reset, found.dt] == [lengths, reset, batch.dt]


def test_a_learner_gives_the_layer_its_times():
    batch = unpack(drawn("dt", 3))
    seen = []
    model = SequenceModel(1, 1, mixer="cfc", d_model=4, n_layers=1, pool="none")
    model.register_forward_pre_hook(lambda _, a, k: seen.append(k.get("dt")), with_kwargs=True)
    read(model, batch, None, slice(10, 20))
    assert torch.equal(seen[0], batch.dt[:, 10:20])


def test_a_run_is_trained_on_times(tmp_path, monkeypatch):
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda run: None)
    sizes = {"train_size": 64, "validation_size": 16, "test_size": 16}
    config = Config(
        task="gaps",
        mixer="cfc",
        task_options=GapsOptions(length=8, times="dt", **sizes),
        mixer_options={"backbone_units": 8},
        model=ModelConfig(d_model=4, n_layers=1, pool="none"),
        train=TrainConfig(epochs=1, batch_size=32, threads=1),
    )
    assert run(config, out=tmp_path / "run").test_metric > 0
    with pytest.raises(ArgumentError, match="lie unevenly, got lstm"):
        run(Config(**{**vars(config), "mixer": "lstm", "mixer_options": {}}), out=tmp_path / "no")


def test_too_short_a_series_is_refused():
    with pytest.raises(ArgumentError, match="length must be at least 6, got 5"):
        Gaps(GapsOptions(length=5))


def test_a_file_cannot_hold_times(tmp_path):
    with pytest.raises(ArgumentError, match="times must be 'column' or 'none'"):
        Gaps(GapsOptions(times="dt")).read(tmp_path / "x.csv")
