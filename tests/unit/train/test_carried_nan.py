"""A carried state that is not finite, which no loss shows yet."""

import math
from dataclasses import replace

import pytest
import torch

from linrnn import train
from linrnn.errors import NonFiniteError
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

pytestmark = pytest.mark.unchecked


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A small language model that carries its state."""
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)
    (tmp_path / "a.txt").write_text("to be or not to be, that is the question\n" * 40)
    config = Config(
        task="lm",
        mixer_options={"d_state": 2},
        model=ModelConfig(d_model=4, n_layers=1, norm="layer", pool="none", dropout=0.0),
        optim=OptimConfig(lr=1e-2),
        train=TrainConfig(epochs=1, batch_size=4, carry_state=True),
    )
    options = replace(config.task_options, data=(str(tmp_path / "a.txt"),), length=16)
    return replace(config, task_options=options)


@pytest.fixture
def spoiled(monkeypatch):
    """The state after step 3 has an infinity in its second row."""
    from linrnn.learn.bptt import BPTT
    from linrnn.train._run_module import RunModule

    step, prepare = BPTT.step, RunModule.prepare
    now = {}

    def count(self, batch):
        now["step"] = self.done_steps + 1
        return prepare(self, batch)

    def spoil(self, model, batch, carried, loop):
        found = step(self, model, batch, carried, loop)
        if now["step"] == 3:
            layers = [h.clone() for h in found.state["layers"]]
            layers[0][1] = complex(0.0, math.inf)
            found = found._replace(state={**found.state, "layers": layers})
        return found

    monkeypatch.setattr(RunModule, "prepare", count)
    monkeypatch.setattr(BPTT, "step", spoil)


def test_carried_state_that_is_not_finite_is_named(text, tmp_path, spoiled):
    with pytest.raises(
        NonFiniteError,
        match=r"carried state must be finite, got other numbers at step 3 of \d+: part 0 of the "
        r"state of shape \(4, 2\) has .*inf.* at \(1, 0\), the first of 2 such values",
    ):
        train.run(text, out=tmp_path / "run")


def test_skip_carries_the_state_before(text, tmp_path, spoiled):
    config = replace(text, train=replace(text.train, on_nan="skip"))
    result = train.run(config, out=tmp_path / "run")
    assert result.skipped == 1
    assert math.isfinite(result.test_loss)
    assert torch.isfinite(torch.tensor(result.validation_metric))
