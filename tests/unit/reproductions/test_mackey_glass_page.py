"""The Mackey-Glass page: sizes, claims, and a tiny run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from linrnn.compare.match import count_parameters
from linrnn.reproductions import Setting
from linrnn.reproductions import mackey_glass as page
from linrnn.reproductions._page.verdict import verdicts
from linrnn.reproductions._runs import legendre
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
    assert all(len(row) == 6 for row in tried.rows)


SMALL = legendre.Size(length=40, train=3, validation=2, test=2, updates=10)


def test_published_models_have_the_published_parameters():
    """The counts that the public code prints as trainable; the LMU's has its bias besides."""
    sizes = {
        label: sum(p.numel() for p in legendre.Stack(layers).parameters() if p.requires_grad)
        for label, layers in legendre.ROWS.items()
    }
    assert sizes == {legendre.LMU: 18_050 + 4 * 49, legendre.LSTM: 18_026, legendre.HYBRID: 17_980}


def test_the_legendre_layer_equals_a_loop():
    torch.manual_seed(0)
    layer = legendre.LegendreLayer(2, 5).double()
    with torch.no_grad():
        layer.bias.normal_()
        layer.E_m.normal_()
    x, (a, b) = torch.randn(3, 7, 2, dtype=torch.float64), layer.memory()
    h, m, states = torch.zeros(3, 5).double(), torch.zeros(3, 4).double(), []
    for x_t in x.unbind(1):
        w = x_t @ layer.E_x.T + h @ layer.E_h.T + m @ layer.E_m.T
        m = m @ a.T + w * b
        h = torch.tanh(x_t @ layer.W_x.T + h @ layer.W_h.T + m @ layer.W_m.T + layer.bias)
        states.append(h)
    torch.testing.assert_close(layer(x), torch.stack(states, 1))


def test_the_lstm_layer_is_that_of_torch_with_one_bias():
    torch.manual_seed(0)
    layer, oracle = legendre.LSTMLayer(3, 4), torch.nn.LSTM(3, 4, batch_first=True)
    oracle.load_state_dict(layer.rnn.state_dict())
    x = torch.randn(2, 6, 3)
    torch.testing.assert_close(layer(x), oracle(x)[0])
    assert sum(p.numel() for p in layer.parameters() if p.requires_grad) == 16 * (3 + 4 + 1)
    forget = oracle.bias_ih_l0[4:8] + oracle.bias_hh_l0[4:8]
    assert torch.equal(forget, torch.ones(4))


def test_the_published_series_follow_one_another():
    """Euler's steps one by one; a sequence begins where the one before ended."""
    series = page.legendre.series_one_by_one(2, 5, seed=0)
    random, x = np.random.RandomState(0), 1.2
    for values in series:
        history = list(1.2 + 0.2 * (random.rand(170) - 0.5))
        for step in range(105):
            for _ in range(10):
                delayed = history.pop(0)
                history.append(x)
                x = x + (0.2 * delayed / (1 + delayed**10) - 0.1 * x) / 10
            if step >= 100:
                assert values[step - 100] == pytest.approx(np.tanh(x - 1), rel=1e-9)


def test_a_tiny_published_run_goes_on_from_its_folder(tmp_path):
    what = page.MackeyGlass(size=SMALL)
    setting = Setting(scale="paper", seeds=(0, 1), out=tmp_path)
    findings = what.run(setting)
    beside, by_seed = findings.tables
    assert [row[1] for row in beside.rows] == ["0.0487", "0.0587", "0.0447"]
    assert all(len(row[1].split(", ")) == 2 for row in by_seed.rows)
    assert [len(judged.held) for judged in findings.verdicts] == [2, 2, 2]
    assert all(judged.scale for judged in findings.verdicts)  # no published size
    runs = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert len(runs) == 6
    again = what.run(setting)
    assert again.runs == findings.runs
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == runs


def test_the_best_weights_of_validation_answer_the_test(tmp_path, monkeypatch):
    errors = iter([0.5, 0.2, 0.9, 0.9, 0.9])
    weights = []

    def nrmse(model, x, target):
        weights.append([p.clone() for p in model.parameters()])
        return next(errors, 0.3)

    monkeypatch.setattr(legendre, "nrmse", nrmse)
    size = replace(SMALL, updates=5)
    run, _ = legendre.trained(
        legendre.LMU, 0, size, Setting(scale="paper", seeds=(0,), out=tmp_path)
    )
    assert (run.validation, run.test) == (0.2, 0.3)
    assert all(map(torch.equal, weights[-1], weights[1]))


def test_at_the_published_size_a_claim_can_be_reproduced(made_runs):
    errors = {
        legendre.LMU: {seed: 0.048 + 1e-3 * (seed % 2) for seed in range(5)},
        legendre.LSTM: {seed: 0.058 + 1e-3 * (seed // 2) for seed in range(5)},
    }
    runs = made_runs(legendre.PART, errors, "nrmse", chance=1.0)
    (judged,) = page.MackeyGlass().claims(runs, "paper")
    assert judged.scale == ""
    assert judged.printed == pytest.approx(0.01)
    assert [verdict.word for verdict in verdicts([judged], 5)] == ["reproduced"]
