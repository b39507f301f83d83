"""A model that cannot read the data of its task is refused before a run has a folder."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from untrained_runs import untrained

import linrnn
from linrnn import tasks, train
from linrnn.cli import main
from linrnn.compare import Entry, compare, sweep
from linrnn.errors import ArgumentError, DataError
from linrnn.learn._parts.batch import unpack
from linrnn.nn.norm import make_norm
from linrnn.tasks.forecast import ForecastOptions
from linrnn.tasks.gaps import GapsOptions
from linrnn.tasks.table import TableOptions
from linrnn.train.data import eval_loader

pytestmark = pytest.mark.unchecked


@pytest.fixture
def data(tmp_path):
    """Options of tasks, by what their steps are like."""
    steps = np.cumsum([1, 1, 2, 5] * 20)
    for name, at in (("uneven", steps), ("even", np.arange(80))):
        lines = [f"{t},{np.sin(t)}" for t in at]
        (tmp_path / f"{name}.csv").write_text("\n".join(["t,y", *lines]) + "\n")
        lines = [f"{i},{t},{np.sin(t + i)},{i % 2}" for i in range(30) for t in at[:5]]
        (tmp_path / f"{name}-table.csv").write_text("\n".join(["id,t,y,of", *lines]) + "\n")
    lines = [f"{np.sin(i)},{i % 2}" for i in range(30)]
    (tmp_path / "one.csv").write_text("\n".join(lines) + "\n")

    def series(name, time="t"):
        path = str(tmp_path / f"{name}.csv")
        return "forecast", ForecastOptions(
            data=path, time=time, columns=("y",), length=8, horizon=2
        )

    def table(name, times="dt"):
        path = str(tmp_path / f"{name}-table.csv")
        how = {"id": "id", "time": "t", "target": "of"}
        return "table", TableOptions(data=path, times=times, **how)

    small = {"length": 8, "train_size": 16, "validation_size": 4, "test_size": 4}
    return {
        "series": series("uneven"),
        "even series": series("even"),
        "table": table("uneven"),
        "even table": table("even"),
        "column": table("uneven", "column"),
        "gaps": ("gaps", GapsOptions(times="dt", **small)),
        "gaps column": ("gaps", GapsOptions(**small)),
        "one step": ("table", TableOptions(data=str(tmp_path / "one.csv"))),
    }


def config_of(tiny, found, **changed):
    task, options = found
    return replace(tiny, task=task, task_options=options, **changed)


UNEVEN = ["series", "table", "gaps"]


def test_tasks_say_whether_their_batches_have_times(data):
    for name, (task, options) in data.items():
        made = tasks.load(task)(options)
        batches = [unpack(next(iter(eval_loader(part, 2)))) for part in made.datasets()]
        assert [b.dt is not None for b in batches] == [name in UNEVEN] * 3, name
        assert (made.time_unit is not None) == (name in UNEVEN), name


@pytest.mark.parametrize("name", UNEVEN)
@pytest.mark.parametrize("mixer", ["gru", "s4d"])
def test_a_layer_that_reads_no_times_is_refused_before_there_is_a_folder(
    tiny, tmp_path, data, name, mixer
):
    options = {"form": "conv"} if mixer == "s4d" else {}
    model = replace(tiny.model, pool="none" if name == "gaps" else "last")
    config = config_of(tiny, data[name], mixer=mixer, mixer_options=options, model=model)
    fix = "Without --task.time" if name == "series" else "--task.times column"
    with pytest.raises(ArgumentError, match=f"lie unevenly, got .*{mixer}.*{fix}"):
        train.run(config, out=tmp_path / "run")
    entries = [Entry(label="a", config=replace(config, mixer="lru", mixer_options={}))]
    with pytest.raises(ArgumentError, match="lie unevenly"):
        compare([*entries, Entry(label="b", config=config)], out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="lie unevenly"):
        sweep(config, {"optim.lr": [0.1]}, seeds=[0], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("rows", "fits"), [(20, False), (1, False), (10, False), (19, True)])
def test_batch_norm_of_one_step_is_refused_before_there_is_a_folder(
    tiny, tmp_path, data, rows, fits
):
    """There are 21 examples."""
    model = replace(tiny.model, norm="batch", pool="last")
    settings = replace(tiny.train, batch_size=rows)
    config = config_of(tiny, data["one step"], mixer="lru", mixer_options={}, model=model)
    config = replace(config, train=settings)
    if fits:
        assert train.run(config, out=tmp_path / "run").steps
        return
    with pytest.raises(ArgumentError, match=f"got 21 training examples in batches of {rows}. Take"):
        train.run(config, out=tmp_path / "run")
    with pytest.raises(ArgumentError, match=r"model\.norm must not be 'batch'"):
        compare([Entry(label="a", config=config)], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_batch_norm_says_in_one_line_what_it_lacks():
    with pytest.raises(ArgumentError, match="norm: a batch must hold more than one step"):
        make_norm("batch", 4)(torch.zeros(1, 1, 4))
    assert make_norm("batch", 4).eval()(torch.ones(1, 1, 4)).shape == (1, 1, 4)


@pytest.mark.parametrize("name", ["series", "table"])
def test_times_that_a_model_reads_are_asked_for(tiny, tmp_path, data, name, capsys):
    pytest.importorskip("onnxscript")
    task, options = data[name]
    run = untrained(tiny, tmp_path / "run", "last", task=task, task_options=options, mixer="lru")
    model = linrnn.load(run)
    x = np.random.RandomState(0).randn(1, 8, 1)
    calls = [
        lambda **dt: model.predict(x, **dt),
        lambda **dt: model.stream().predict(x[0], **{k: v[0] for k, v in dt.items()}),
        lambda **dt: model.to_torch()(torch.tensor(x), **dt),
    ]
    dt = torch.rand(1, 8)
    for call in calls:
        with pytest.raises(ArgumentError, match="dt must be given"):
            call()
        call(dt=dt)
    if name == "table":  # a series has to have its column of times
        np.savetxt(tmp_path / "new.txt", x[:, :5, 0])
        with pytest.raises(DataError, match="steps must have times"):
            train.predict(run, tmp_path / "new.txt")
    capsys.readouterr()
    assert main(["export", str(run), str(tmp_path / "a.onnx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["times"]["name"] == "dt"
    from linrnn.interop.onnx import metadata

    assert metadata(tmp_path / "a.onnx")["task"]["time_unit"] == {"series": 2, "table": 1.5}[name]
    Path(options.data).unlink()  # what is asked of a step follows from what the run keeps
    with pytest.raises(ArgumentError, match="dt must be given"):
        linrnn.load(run).predict(x)


def test_times_are_not_asked_for_where_all_are_alike(tiny, tmp_path, data):
    task, options = data["even table"]
    run = untrained(tiny, tmp_path / "run", "last", task=task, task_options=options, mixer="lru")
    assert linrnn.load(run).predict(np.zeros((1, 5, 1))).shape == (1,)
