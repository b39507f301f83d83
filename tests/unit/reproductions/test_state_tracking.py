"""Words of groups at two lengths: the rows, the longer words, the verdicts."""

import pytest

from linrnn.mixers import load
from linrnn.reproductions import Setting
from linrnn.reproductions import state_tracking as tracking


@pytest.mark.parametrize("system", tracking.SYSTEMS)
def test_every_system_can_be_built(system):
    config = tracking.config("S3", system, tracking.SIZES["cpu"])
    layer = load(config.mixer)(config.model.d_model, **config.mixer_options)
    assert layer.causal


def test_what_is_said_of_a_group_is_judged_seed_by_seed(made_runs):
    longer = {
        "delta rule, rates to 1": {0: 0.5, 1: 0.9},
        "delta rule, rates to 2": {0: 0.9, 1: 0.8},
        "GRU": {0: 1.0, 1: 1.0},
    }
    runs = made_runs("parity", longer, measure=tracking.LONGER)
    (only,) = tracking.StateTracking().claims(runs, "cpu")
    assert only.claim == "parity: delta rule, rates to 2 is better than delta rule, rates to 1"
    assert only.held == (True, False)
    assert tracking.StateTracking(groups=["S4"]).claims(runs, "cpu") == []


@pytest.mark.slow
def test_systems_are_trained_at_one_length_and_read_at_four_times_it(tmp_path):
    size = tracking.Size(length=3, steps=6, width=8, batch=4, tested=8)
    systems = ["delta rule, rates to 2", "delta rule, rates to 1"]
    what = tracking.StateTracking(systems, ["parity"], {"cpu": size})
    found = what.run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    results, tried = found.tables
    assert [row[0] for row in results.rows] == systems
    assert results.head[1:3] == ["3 elements", "12 elements"]
    for row in results.rows:
        assert all("[" in cell and 0 <= float(cell.split()[0]) <= 100 for cell in row[1:3])
    assert [len(row) for row in tried.rows] == [2 + len(tracking.RATES)] * 2
    (verdict,) = found.verdicts
    assert len(verdict.held) == 2
