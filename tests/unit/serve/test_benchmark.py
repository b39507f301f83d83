"""The load test sees an answer that is wrong, and a step that is lost."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from linrnn.train._trained import TrainedModel

pytestmark = pytest.mark.unchecked


@pytest.fixture
def load_test(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    return importlib.import_module("serve")


def test_answers_are_compared_with_those_alone(load_test, folder, runs):
    x = np.random.default_rng(0).normal(1.0, 0.2, (3, 5, 1))
    load = load_test.Load(x, 1)
    load.heard[:] = 4, 5, 2
    for i, steps in enumerate(load.heard):
        load.answers[i, :steps] = TrainedModel(runs["series"]).stream().predict(x[i, :steps])
    largest, compared = load_test.differences(folder / "series", load)
    assert largest < 1e-5
    assert compared == 11
    load.answers[1, 3] += 0.1
    assert load_test.differences(folder / "series", load)[0] == pytest.approx(0.1, abs=1e-5)


def test_steps_lost_and_unheard_are_counted(load_test, monkeypatch):
    steps = {"/sessions/sensor-0": 3, "/sessions/sensor-1": 5, "/sessions/sensor-2": 4}
    monkeypatch.setattr(load_test.Client, "get", lambda self, path: {"steps": steps[path]})
    load = load_test.Load(np.zeros((3, 9, 1)), 1)
    load.heard[:] = 4
    assert load.catch_up("127.0.0.1:1") == (1, 1)
    assert load.heard.tolist() == [3, 5, 4]
