"""Long Range Arena scaled down: one budget, published rates in the middle, the page."""

from dataclasses import replace

import pytest

from linrnn import recipes
from linrnn.compare.match import count_parameters
from linrnn.reproductions import Setting
from linrnn.reproductions import lra_state_spaces as lra
from linrnn.tasks.listops import ListOpsOptions

each = pytest.mark.parametrize(
    ("name", "label"), [(name, label) for name in lra.COLUMNS for label in lra.MIXERS]
)


@each
def test_a_row_differs_by_its_mixer_and_learning_rate_alone(name, label):
    base = lra.COLUMNS[name].config
    found = lra.rates(base, lra.MIXERS[label], lra.FACTORS)
    assert len(found) == 3
    for lr, config in found.items():
        assert config.optim.lr == lr
        assert config.mixer == lra.MIXERS[label]
        shared = replace(base.optim, lr=lr, recurrent_lr_factor=config.optim.recurrent_lr_factor)
        assert config.optim == shared
        kept = replace(config, mixer=base.mixer, mixer_options=base.mixer_options, optim=base.optim)
        assert kept == base


@each
def test_the_published_learning_rate_is_the_smallest(name, label):
    base, mixer = lra.COLUMNS[name].config, lra.MIXERS[label]
    grey = "_grey" * (name == "Image")
    recipe = base.task if label == "LRU" else f"{base.task}{grey}_{mixer}"
    published = recipes.load(recipe, "paper").config
    found = lra.rates(base, mixer, lra.FACTORS)
    assert min(found) == published.optim.lr
    shares = {config.optim.recurrent_lr_factor for config in found.values()}
    assert shares == {published.optim.recurrent_lr_factor}


@pytest.mark.parametrize("name", lra.COLUMNS)
def test_models_are_of_about_one_size(name):
    base = lra.COLUMNS[name].config
    counts = [
        count_parameters(lra.rates(base, mixer, (1.0,)).popitem()[1])
        for mixer in lra.MIXERS.values()
    ]
    assert max(counts) < 3.5 * min(counts)


def small():
    options = ListOpsOptions(
        min_length=5, max_length=12, train_size=64, validation_size=32, test_size=32
    )
    column = lra.COLUMNS["ListOps"]
    config = column.config
    model = replace(config.model, d_model=8, n_layers=1)
    train = replace(config.train, epochs=1)
    return replace(column, config=replace(config, task_options=options, model=model, train=train))


@pytest.mark.slow
def test_the_page_is_written_and_goes_on(tmp_path):
    """A second call finds every run there."""
    what = lra.LRAStateSpaces({"ListOps": small()}, ["DSS", "S5"], (1.0, 3.0))
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    found = what.run(setting)
    results, tried = found.tables
    (judged,) = found.verdicts
    assert judged.claim == "ListOps: S5 is better than DSS"
    assert (judged.published, len(judged.held)) == ("62.15 against 58.2", 2)
    assert any("published S5 > DSS" in note for note in found.notes)
    assert [row[0] for row in results.rows] == ["DSS", "S5"]
    assert [row[1] for row in results.rows] == ["58.2", "62.15"]
    assert [row[3] for row in results.rows] == ["2", "2"]
    assert all(len(row) == 4 for row in tried.rows)
    done = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/result.json"))
    assert len(done) == 6  # two rates each with a seed, and the better with one more
    assert what.run(setting).tables == found.tables
    again = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/result.json"))
    assert again == done


@pytest.mark.unchecked
def test_images_that_are_not_there_are_named(tmp_path):
    config = lra.COLUMNS["Image"].config
    options = replace(config.task_options, data=str(tmp_path / "none.npz"))
    column = replace(lra.COLUMNS["Image"], config=replace(config, task_options=options))
    what = lra.LRAStateSpaces({"Image": column}, ["S4D"], (1.0,))
    found = what.run(Setting(scale="cpu", seeds=(0,), out=tmp_path))
    assert not found.complete
    assert found.tables[0].rows[0][2] == "not run"
    assert found.verdicts == ()
    assert any("LINRNN_DATA" in note for note in found.notes)
