"""The Mackey-Glass page: sizes, claims, and a tiny run."""

from dataclasses import replace

import pytest

from linrnn.compare.match import count_parameters
from linrnn.reproductions import Setting
from linrnn.reproductions import mackey_glass as page
from linrnn.tasks.mackey_glass import MackeyGlass, MackeyGlassOptions


def test_all_models_have_the_published_number_of_parameters():
    for model in page.MODELS.values():
        found = page.of_size(page.config(), model, page.PARAMETERS)
        assert list(found) == [config.optim.lr for config in found.values()]
        count = count_parameters(next(iter(found.values())))
        assert count == pytest.approx(page.PARAMETERS, rel=0.03)


def test_the_published_nrmse_is_that_of_the_published_error():
    for nrmse, mse in page._PRINTED.values():
        assert page.nrmse(mse) == pytest.approx(nrmse, abs=1e-4)
    assert {p.value for p in MackeyGlass.published} == {mse for _, mse in page._PRINTED.values()}


def test_a_smaller_error_is_better(made_runs):
    errors = {"LMU": {0: 1e-4, 1: 1.1e-4}, "LSTM": {0: 3e-4, 1: 3.1e-4}, "LRU": {0: 1e-5, 1: 9e-4}}
    found = {
        judged.claim: judged.held
        for judged in page.MackeyGlass().claims(made_runs(page.NAME, errors, "mse"), "cpu")
    }
    assert found == {
        "LMU has a smaller error than LSTM": (True, True),
        "LRU has a smaller error than LSTM": (True, False),
        "LRU has a smaller error than LMU": (True, False),
    }


@pytest.mark.slow
def test_a_tiny_run_leaves_the_whole_page(tmp_path):
    options = MackeyGlassOptions(length=20, train_size=8, validation_size=4, test_size=4)
    base = page.config()
    base = replace(base, task_options=options, train=replace(base.train, epochs=1, batch_size=8))
    what = page.MackeyGlass(base, ["LMU", "LRU"], parameters=4_000)
    found = what.run(Setting(scale="cpu", seeds=(0,), out=tmp_path))
    errors, results, tried = found.tables
    (judged,) = found.verdicts
    assert (judged.claim, len(judged.held)) == ("LRU has a smaller error than LMU", 1)
    assert [row[0] for row in errors.rows] == ["LMU", "LRU"]
    assert all(float(row[1]) > 0 for row in errors.rows)
    assert [row[2] for row in results.rows] == ["1", "1"]
    assert all(len(row) == 5 for row in tried.rows)
