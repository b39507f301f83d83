"""Recipes: each scale builds a model and can be stored; what nobody ran has published numbers."""

import importlib
import math
from dataclasses import replace

import pytest
import torch

from linrnn import recipes, tasks, train
from linrnn.cli._line.entries import summaries
from linrnn.errors import UnknownNameError
from linrnn.train.config import from_json, to_json
from linrnn.train.model import build_model, build_task

SCALES = [(name, scale) for name in recipes.names() for scale in recipes.scales(name)]
each_scale = pytest.mark.parametrize(("name", "scale"), SCALES)
each_cpu_recipe = pytest.mark.parametrize("name", [name for name, s in SCALES if s == "cpu"])


@pytest.fixture(scope="module")
def made_data(tmp_path_factory, pytestconfig):
    """A folder with a tiny file of every kind a task reads."""
    root = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(pytestconfig.rootpath / "tests" / "unit" / "tasks")
        importlib.import_module("made_data").write_all(root)
    return root


@pytest.fixture(autouse=True)
def _use_made_data(made_data, monkeypatch):
    """Nothing is downloaded."""
    monkeypatch.setenv("LINRNN_DATA", str(made_data))


class TwoSteps(train.Reporter):
    """Collect the losses of two steps, then end the run."""

    def __init__(self):
        self.losses = []

    def stepped(self, report):
        self.losses.append(report.loss)
        if len(self.losses) == 2:
            raise ConnectionAbortedError


@each_cpu_recipe
def test_cpu_scale_trains_two_steps(name, tmp_path):
    heard, config = TwoSteps(), recipes.load(name, "cpu").config
    config = replace(config, train=replace(config.train, batch_size=2))
    # the made files hold but ten images and some reviews
    small = {"train_images": 0, "validation_size": 2, "check_counts": False}
    small |= {"length": 16} if config.task == "sound" else {}
    options = {k: v for k, v in small.items() if hasattr(config.task_options, k)}
    config = replace(config, task_options=replace(config.task_options, **options))
    with pytest.raises(ConnectionAbortedError):
        train.run(config, out=tmp_path / "run", reporter=heard)
    assert all(math.isfinite(x) for x in heard.losses)


@each_scale
def test_scale_builds_its_model(name, scale):
    config = recipes.load(name, scale).config
    config = replace(config, model=replace(config.model, n_layers=1))
    task = build_task(config)
    model = build_model(config, task).eval()
    shape = (2, *((model.documents,) if model.documents > 1 else ()), 5)
    if task.encoder == "tokens":
        x = torch.randint(task.d_input, shape)
    else:
        x = torch.rand(*shape, task.d_input)
    y, _ = model(x)
    assert y.shape == (2, *((5,) if config.model.pool == "none" else ()), task.d_output)
    assert y.isfinite().all()


def published(recipe):
    return tasks.load(recipe.config.task).published


@each_scale
def test_scale_is_complete_and_can_be_stored(name, scale):
    recipe = recipes.load(name, scale)
    assert from_json(to_json(recipe.config)) == recipe.config
    assert recipe.seeds or recipe.expected in [p.value for p in published(recipe)]
    if recipe.seeds:
        assert recipe.seconds > 0
        assert recipe.spread >= 0
    assert recipe.seconds is None or recipe.seconds > 0
    assert recipe.spread is None or recipe.spread >= 0
    accuracy = tasks.load(recipe.config.task).metric == "accuracy"
    assert 0 < recipe.expected <= (1 if accuracy else math.inf)
    assert all((recipe.summary, recipe.shows, recipe.hardware, recipe.source))


@each_cpu_recipe
def test_cpu_scale_takes_ten_minutes_at_most(name):
    seconds = recipes.load(name, "cpu").seconds
    assert seconds is None or seconds <= 600


def test_scales_are_found_without_importing_a_recipe(python):
    code = """
import sys
from linrnn import recipes
found = {name: recipes.scales(name) for name in recipes.names()}
modules = [m for m in sys.modules if m.startswith("linrnn.recipes.")]
result = [found["digits"], found["listops_s5"], modules, "torch" in sys.modules]
"""
    assert python(code) == [["cpu"], ["paper"], [], False]


def test_scales_are_the_public_functions_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "made_up.py").write_text(
        "def hour():\n    return 1\n\ndef cpu():\n    return 2\n\ndef _part():\n    return 3\n"
    )
    monkeypatch.setattr(recipes, "__path__", [str(tmp_path)])
    assert recipes.scales("made_up") == ["hour", "cpu"]
    assert recipes.load("made_up") == 2
    assert recipes.load("made_up", "hour") == 1


def test_a_study_adds_recipes_by_its_table(tmp_path, monkeypatch):
    table = 'RECIPES = {"digits_new": "New on digits.", "copy_new": "New on copies."}\n'
    (tmp_path / "_studies").mkdir()
    (tmp_path / "_studies" / "new.py").write_text(
        f"{table}def paper(name):\n    return name.upper()\n"
    )
    (tmp_path / "own.py").write_text("def cpu():\n    return 1\n")
    monkeypatch.setattr(recipes, "__path__", [str(tmp_path)])
    monkeypatch.setattr("linrnn.recipes._studies.__path__", [str(tmp_path / "_studies")])
    assert recipes.names() == ["copy_new", "digits_new", "own"]
    assert (recipes.scales("copy_new"), recipes.default_scale("copy_new")) == (["paper"], "paper")
    assert recipes.load("copy_new") == "COPY_NEW"
    assert summaries("recipes")["digits_new"] == "New on digits."


def test_load_without_a_scale_takes_the_first_where_there_is_no_cpu():
    assert recipes.load("listops_s5") == recipes.load("listops_s5", "paper")


@pytest.mark.unchecked
def test_load_unknown_recipe():
    with pytest.raises(UnknownNameError, match=r"no recipe named 'digit'. Did you mean 'digits'"):
        recipes.load("digit")
    with pytest.raises(UnknownNameError, match=r"no recipe named 'digit'. Did you mean 'digits'"):
        recipes.scales("digit")


@pytest.mark.unchecked
def test_load_unknown_scale():
    message = r"no scale of the recipe digits named 'cpus'. Did you mean 'cpu'\? Known: cpu\."
    with pytest.raises(UnknownNameError, match=message):
        recipes.load("digits", "cpus")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_digits_recipe_reaches_its_metric(seed, tmp_path):
    recipe = recipes.load("digits", "cpu")
    config = replace(recipe.config, seed=seed)
    result = train.run(config, out=tmp_path / "run")
    assert result.test_metric >= 0.97
    assert abs(result.test_metric - recipe.expected) <= recipe.spread + 0.01
    assert torch.isfinite(torch.tensor(result.test_loss))
