"""``linrnn stream`` says when the forecasts of a run have become worse than in its back-test."""

import json
import sys

import numpy as np
import pytest
import torch

from linrnn import contest, train
from linrnn.cli import main
from linrnn.frozen import SeriesModel
from linrnn.tasks.forecast import ForecastOptions
from linrnn.train.context import open_run

pytestmark = pytest.mark.unchecked

N, MORE = 600, 400
NOISE = np.random.default_rng(0).standard_normal((N + MORE, 2))
SERIES = 50 + 10 * (2 * np.sin(np.arange(N + MORE) * 2 * np.pi / 24)[:, None] + NOISE)


@pytest.fixture(scope="module", params=["error", "mask"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift")
    rows = "".join(f"{a},{b}\n" for a, b in SERIES[:N])
    (folder / "s.csv").write_text(f"load,price\n{rows}")
    options = ForecastOptions(
        data=str(folder / "s.csv"), length=48, horizon=6, missing=request.param
    )
    config = train.Config(
        task="forecast", task_options=options, model=train.ModelConfig(pool="last")
    )
    return contest.run(config, only="bank", out=folder / "run").folder


@pytest.fixture
def stream(monkeypatch, tmp_path, capsys):
    """Answers to some steps, a line each, and what comes on standard error."""

    def answers(folder, steps, *options):
        (tmp_path / "stdin").write_text("".join(f"{a:.9g} {b:.9g}\n" for a, b in steps))
        capsys.readouterr()
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert main(["stream", str(folder), "--json", *options]) == 0
        out, err = capsys.readouterr()
        return [json.loads(line)["drift"] for line in out.splitlines()], err

    return answers


def test_one_line_says_which_column_has_changed(run, stream):
    """Not before the change, within 30 lines of it, and once."""
    y = SERIES.copy()
    y[N + 200 :, 1] += 10 * NOISE[N + 200 :, 1] * 3
    notices, err = stream(run, y[200:])
    assert notices[:600] == [[]] * 600
    assert {said[0] for said in notices[630:]} == {"price"}  # the other column may read this one
    assert err.count("forecasts of price one step ahead") == 1
    assert err.count("forecasts of") == err.count("\n") == len(notices[-1])


def test_what_follows_the_series_as_before_gets_no_notice(run, stream):
    notices, err = stream(run, SERIES)
    assert notices == [[]] * (N + MORE)
    assert not err


def test_a_stream_that_goes_on_is_judged_at_once(run, stream, tmp_path):
    state = ("--state", str(tmp_path / "s.state"))
    assert stream(run, SERIES[:N], *state)[0][-1] == []
    notices, _ = stream(run, SERIES[N:] * 3, *state)
    assert set(notices[60]) == {"load", "price"}


def test_a_run_without_a_back_test_is_not_judged(run):
    model = open_run(run).model
    weights = {name: part for name, part in model.state_dict().items() if name != "tails"}
    older = SeriesModel.of_weights(weights, model.d_input)
    older.load_state_dict(weights)
    x = torch.zeros(1, 60, model.d_input, dtype=torch.float64)
    assert torch.equal(older.double()(x)[0], model.double()(x)[0])
    assert older.tails is None
    assert model.tails.dtype == torch.int64
