"""The page of the FitzHugh-Nagumo equations: data, the model of the public code, and the claims."""

import math

import numpy as np
import pytest
import torch

from linrnn.reproductions import Setting
from linrnn.reproductions import fitzhugh_nagumo as page
from linrnn.reproductions._page.verdict import verdicts

SMALL = page.Size(length=20, train=6, validation=2, test=3, batch=4, epochs=2)


def test_values_solve_the_equations():
    """An Euler step a thousandth as long comes to the same place."""
    (x, target), *_ = page.data(page.Size(train=2, validation=1, test=1, length=100))
    assert torch.equal(x[:, 1:], target[:, :-1])
    start = np.random.RandomState(1234).rand() * 2 - 1
    v, w, steps = start, 0.0, 20_000
    for _ in range(steps):
        h = 40 / steps
        v, w = v + h * (v - v**3 / 3 - w + 0.5), w + h * (v + 0.7 - 0.8 * w) / 50
    assert x[0, 0, 0].item() == pytest.approx(start)
    assert x[0, 10, 0].item() == pytest.approx(v, abs=0.01)


def test_the_model_is_that_of_the_public_code():
    """Two states whose steps follow the inputs and y, and a linear read-out."""
    torch.manual_seed(0)
    model, x = page.Predictor(page.LEM_ROW), torch.randn(2, 7, 1)
    layer = model.layer
    y = z = torch.zeros(2, 16)
    answers = []
    for t in range(7):
        s, r, u_z, u_y = layer.V(x[:, t]).chunk(4, 1)
        h_s, h_r, h_z = layer.W(y).chunk(3, 1)
        s, r = torch.sigmoid(s + h_s), torch.sigmoid(r + h_r)
        z = (1 - s) * z + s * torch.tanh(u_z + h_z)
        y = (1 - r) * y + r * torch.tanh(layer.W_y(z) + u_y)
        answers.append(layer.out_proj(y))
    torch.testing.assert_close(model(x), torch.stack(answers, 1))
    assert sum(p.numel() for p in model.parameters()) == 1_233


def test_a_tiny_run_goes_on_from_its_folder(tmp_path):
    setting = Setting(scale="paper", seeds=(0, 1), out=tmp_path)
    findings = page.FitzHughNagumo(SMALL).run(setting)
    errors, _, rates = findings.tables
    assert [row[0] for row in errors.rows] == list(page.RATES)
    assert [len(row) for row in rates.rows] == [7, 7]
    written = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert len(written) == 2 + 2 * (6 + 1)
    again = page.FitzHughNagumo(SMALL).run(setting)
    assert again.runs.csv() == findings.runs.csv()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == written


def test_claims_compare_with_the_printed_error(made_runs):
    errors = {
        page.LEM_ROW: {seed: page.PRINTED * (1 + 0.02 * (seed - 2)) for seed in range(5)},
        page.LSTM_ROW: {seed: 0.01 + 1e-4 * seed for seed in range(5)},
    }
    runs = made_runs(page.PART, errors, "rmse")
    words = [v.word for v in verdicts(page.FitzHughNagumo().claims(runs, "paper"), 5)]
    assert words == ["reproduced", "same direction at reduced scale"]
    errors[page.LEM_ROW] = {seed: 2 * v for seed, v in errors[page.LEM_ROW].items()}
    judged = page.FitzHughNagumo().claims(made_runs(page.PART, errors, "rmse"), "paper")[0]
    assert verdicts([judged], 5)[0].word == "opposite"
    assert math.isclose(sum(judged.differences) / 5, -math.log10(2), abs_tol=0.01)
