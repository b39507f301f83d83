import gzip

import numpy as np
import pytest
import torch
from made_data import write_ett

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks.ett import ETT, ETTOptions
from linrnn.tasks.ltsf import LTSF, LTSFOptions


def make(place, **options):
    return LTSF(LTSFOptions(**{"data": str(place), "check_counts": False} | options))


def test_parts_are_70_10_and_20_percent_and_no_window_is_left_out(tmp_path):
    table = write_ett(tmp_path / "weather.csv", 1003)
    task = make(tmp_path, length=20, horizon=5)
    parts = task.datasets()
    assert [len(part) for part in parts] == [702 - 20 - 5 + 1, 101 - 4, 200 - 4]
    assert (task.d_input, task.d_output) == (7, 35)
    scaled = (table - table[:702].mean(0)) / table[:702].std(0)
    x, target = parts.test[len(parts.test) - 1]
    assert torch.allclose(target, torch.tensor(scaled[-5:].ravel()).float(), atol=1e-5)
    assert torch.allclose(x, torch.tensor(scaled[-25:-5]).float(), atol=1e-5)
    assert task.chance == pytest.approx(np.mean(scaled[803:] ** 2))


def test_one_column_is_the_last(tmp_path):
    table = write_ett(tmp_path / "e.csv", 1000)
    (tmp_path / "electricity.csv.gz").write_bytes(gzip.compress((tmp_path / "e.csv").read_bytes()))
    task = make(tmp_path, set="electricity", columns="OT", length=20, horizon=5)
    assert task.known.names == ("OT",)
    assert task.known.mean[0] == pytest.approx(table[:700, -1].mean())


def test_baselines_repeat_the_last_step_and_the_last_day(tmp_path):
    season = np.tile(np.arange(144.0), 20)
    rows = "".join(f"d,{v},{2 * v}\n" for v in season)
    (tmp_path / "weather.csv").write_text(f"date,a,OT\n{rows}")
    task = make(tmp_path, length=20, horizon=150)
    baselines = task.baselines()
    assert baselines["the last season"] == 0
    windows = task.datasets().test
    x, target = windows[range(len(windows))]
    errors = (target.view(len(x), 150, 2) - x[:, -1:]).double().square().mean()
    assert baselines["the last step"] == pytest.approx(errors.item(), rel=1e-5)


def test_baseline_of_the_transformer_is_that_of_its_description(shared_data):
    task = ETT(ETTOptions(data=str(shared_data / "ett")))
    assert task.baselines() == {"the last step": pytest.approx(0.0343, abs=5e-5)}


@pytest.mark.unchecked
def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(DataError, match=r"must hold weather\.csv, of the columns .* got no such"):
        make(tmp_path / "none").datasets()
    write_ett(tmp_path / "weather.csv", 300)
    message = r"weather\.csv: the file must have 52,696 rows of 21 numbers as published, got 300 of"
    with pytest.raises(DataError, match=message):
        make(tmp_path, check_counts=True).datasets()
    with pytest.raises(DataError, match="each part of the series must hold a window of 336"):
        make(tmp_path).datasets()
    with pytest.raises(UnknownNameError, match="no LTSF set named 'traffic'"):
        LTSF(LTSFOptions(set="traffic"))
    with pytest.raises(ArgumentError, match="LTSF: horizon must be an integer of at least 1"):
        LTSF(LTSFOptions(horizon=0))
