import math
from dataclasses import replace

import pytest
import torch

from linrnn import recipes, tasks, train
from linrnn.errors import UnknownNameError
from linrnn.train._config import from_json, to_json

each_recipe = pytest.mark.parametrize("name", recipes.names())


class TwoSteps(train.Reporter):
    """Collect the losses of two steps, then end the run."""

    def __init__(self):
        self.losses = []

    def stepped(self, report):
        self.losses.append(report.loss)
        if len(self.losses) == 2:
            raise ConnectionAbortedError


@each_recipe
def test_recipe_trains_two_steps(name, tmp_path):
    heard, config = TwoSteps(), recipes.load(name).config
    batch_size = min(2, config.train.batch_size)  # some recipes are for a GPU
    config = replace(config, train=replace(config.train, batch_size=batch_size))
    with pytest.raises(ConnectionAbortedError):
        train.run(config, out=tmp_path / "run", reporter=heard)
    assert all(math.isfinite(x) for x in heard.losses)


def published(recipe):
    return tasks.load(recipe.config.task).published


@each_recipe
def test_recipe_is_complete_and_can_be_stored(name):
    recipe = recipes.load(name)
    assert from_json(to_json(recipe.config)) == recipe.config
    assert recipe.seeds or recipe.expected in [p.value for p in published(recipe)]
    assert recipe.seconds > 0
    assert recipe.spread >= 0
    assert 0 < recipe.expected <= 1
    assert all((recipe.summary, recipe.hardware, recipe.source))


@pytest.mark.unchecked
def test_load_unknown_recipe():
    with pytest.raises(UnknownNameError, match=r"no recipe named 'digit'. Did you mean 'digits'"):
        recipes.load("digit")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_digits_recipe_reaches_its_metric(seed, tmp_path):
    recipe = recipes.load("digits")
    config = replace(recipe.config, seed=seed)
    result = train.run(config, out=tmp_path / "run")
    assert result.test_metric >= 0.97
    assert abs(result.test_metric - recipe.expected) <= recipe.spread + 0.01
    assert torch.isfinite(torch.tensor(result.test_loss))
