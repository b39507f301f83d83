"""A linear model of all numbers of a sequence wins where it answers best, and its run is used."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import linrnn
from linrnn import contest, recipes, serve, state, train
from linrnn.cli import main
from linrnn.contest import _linear
from linrnn.contest._race import Scale
from linrnn.contest._sequences import Pool
from linrnn.errors import ArgumentError, ShapeError
from linrnn.frozen import LinearModel
from linrnn.streaming import Session, Sessions
from linrnn.tasks.table import Table, TableOptions

TINY = ["--model.d-model", "4", "--model.n-layers", "1", "--train.batch-size", "4096"]


def rows(n_classes=2):
    """Sequences whose order means nothing, in classes that a line tells apart."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 12))
    y = (x @ rng.standard_normal((12, n_classes))).argmax(1)
    return x, np.array(["no", "yes", "perhaps"])[y]


def pool_of(**options):
    task = Table(TableOptions(data="x.npz", **options))
    splits = task.datasets()
    return task, Pool.of(task, splits.train, splits.validation)


def rival(pool):
    scale = Scale(higher_is_better=pool.classes, best=1.0, independent=len(pool.target))
    return _linear.linear(pool, scale)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def plane(here, capsys):
    """Sequences, their labels, and what was said of the run that a linear model won."""
    x, y = rows()
    np.savez("x.npz", x=x, y=y)
    assert main(["train", "table", "--data", "x.npz", "--json", *TINY]) == 0
    return x, y, json.loads(capsys.readouterr().out)


def logistic(task):
    """Logistic regression of the training and the validation part, and the test part."""
    (first, y), (second, z), (third, truth) = task.parts()
    x, new = (task.padded(part).flatten(1).numpy() for part in (first + second, third))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    return model.fit(x, np.concatenate([y, z])), new, truth


def test_it_wins_and_its_folder_answers_as_logistic_regression(plane):
    x, y, said = plane
    assert (said["mixer"], said["folder"]) == ("linear", "runs/table-linear-1")
    with open("runs/table-linear-1/contest.csv") as file:
        won = [(row["who"], row["kind"]) for row in csv.DictReader(file) if row["won"] == "1"]
    assert won == [("logistic regression", "linear")]
    task = Table(TableOptions(data="x.npz"))
    model, new, truth = logistic(task)
    score, config = train.evaluate(said["folder"])
    assert config.mixer == "linear"
    assert score.metric == said["test_metric"] == pytest.approx(model.score(new, truth))
    loaded = linrnn.load(said["folder"])
    expected = model.predict_proba(task.padded(list(x[:, :, None])).flatten(1).numpy())
    np.testing.assert_allclose(loaded.predict_proba(x), expected, atol=1e-4)
    np.savez("new.npz", x=x)
    labels = [one.label for one in train.predict(said["folder"], "new.npz")]
    assert labels == loaded.predict(x).tolist()
    assert np.mean(np.array(labels) == y) > 0.9
    assert train.resume(said["folder"]) == train.resume(said["folder"])


def test_a_stream_has_the_answer_after_the_last_step(plane, tmp_path, monkeypatch, capsys):
    x, *_ = plane
    loaded = linrnn.load("runs/table-linear-1")
    for k in range(4):
        stream = loaded.stream()
        stream.predict(x[k, :5, None])
        stream.session.save(tmp_path / "state")
        again = loaded.stream()
        again.session.load(tmp_path / "state")
        assert again.predict(x[k, 5:, None]) == loaded.predict(x[k : k + 1])[0]
    with pytest.raises(ShapeError, match="at most the 12 steps"):
        again.predict(x[0, :1, None])
    lines = "".join(f"{value:.9g}\n" for value in x[0])
    for text, code in ((lines, 0), (lines + "1\n", 1)):
        (tmp_path / "stdin").write_text(text)
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert main(["stream", "runs/table-linear-1"]) == code
        said = capsys.readouterr()
        label, share = said.out.splitlines()[11].split()
        assert label == loaded.predict(x[:1])[0]
        assert float(share) == pytest.approx(loaded.predict_proba(x[:1]).max(), abs=1e-4)
    assert "line 13: a sequence must have at most the 12 steps" in said.err


def test_what_needs_layers_says_so(plane, capsys):
    run = "runs/table-linear-1"
    for verb in (["distill", run], ["eval", run, "--lyapunov"]):
        assert main(verb) == 2
        assert "got a linear model" in capsys.readouterr().err
    options = TableOptions(data="x.npz")
    with pytest.raises(ArgumentError, match="got 'linear'"):
        train.run(train.Config(task="table", mixer="linear", task_options=options))


@pytest.mark.unchecked  # an open batch is traced as a symbol, which is no int
@pytest.mark.parametrize("kind", [(), ("--sequence",), ("--batch-size", "3")])
def test_its_run_is_exported(kind, here, capsys):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from linrnn.interop.onnx import initial_state, metadata

    x, y = rows(3)
    np.savez("x.npz", x=x, y=y)
    assert main(["train", "table", "--data", "x.npz", "--only", "linear", "--out", "run"]) == 0
    assert main(["export", "run", "x.onnx", *kind]) == 0
    capsys.readouterr()
    record, session = metadata("x.onnx"), runtime.InferenceSession("x.onnx")
    assert record["task"]["classes"] == ["no", "perhaps", "yes"]
    loaded, task = linrnn.load("run"), Table(TableOptions(data="x.npz"))
    read = task.padded(list(x[:3, :, None])).double().numpy()  # (3, time, 1), as models read it
    parts = {
        part["name"]: np.repeat(value, 3 // len(value), 0)
        for part, value in zip(record["states"], initial_state(record).values(), strict=True)
    }
    if kind == ("--sequence",):
        answer = session.run(None, {"x": read, **parts})[0]
    else:
        for step in read.swapaxes(0, 1):
            answer, *after = session.run(None, {"x": step, **parts})
            parts = dict(zip(parts, after, strict=True))
    expected = loaded.model(torch.from_numpy(read))[0].detach().numpy()
    np.testing.assert_allclose(answer, expected, atol=1e-9)
    if kind != ("--sequence",):
        assert np.isnan(session.run(None, {"x": step, **parts})[0]).all(), "a step too many"


def test_only_linear_is_fitted_alone_or_says_why_not(here, capsys):
    x, y = rows()
    np.savez("x.npz", x=x, y=y)
    line = ["train", "table", "--data", "x.npz", "--only", "linear"]
    assert main([*line, "--out", "run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["mixer"], [entry["kind"] for entry in said["contest"]]) == ("linear", ["linear"])
    np.savez("new.npz", x=x)
    assert main(["predict", "run", "new.npz"]) == 0
    assert capsys.readouterr().out.count("\n") >= 300
    assert main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == said["test_metric"]
    assert main([*line, "--mixer", "gru"]) == 2
    assert "--mixer must be left out with --only linear" in capsys.readouterr().err
    np.savez("x.npz", x=x, y=y, lengths=12 - np.arange(300) % 2)
    assert main(line) == 2
    assert "got 'linear': sequences have different lengths" in capsys.readouterr().err
    Path("s.csv").write_text("y\n" + "\n".join(map(str, range(200))))
    sizes = ["--task.horizon", "4", "--task.length", "8"]
    assert main(["train", "forecast", "--data", "s.csv", "--only", "linear", *sizes]) == 2
    assert "got 'linear': it is for sequences with one answer" in capsys.readouterr().err


@pytest.mark.unchecked
def test_it_is_served_as_it_streams(plane):
    testing = pytest.importorskip("starlette.testclient", reason="needs the extra dev")
    pytest.importorskip("httpx", reason="needs the extra dev")
    x, *_ = plane
    loaded = linrnn.load("runs/table-linear-1")
    app = serve.application(serve.open_runs(Path("runs")))
    with testing.TestClient(app, base_url="http://127.0.0.1") as ask:
        assert ask.post("/sessions", json={"id": "a"}).json()["steps"] == 0
        for part in (x[0, :5], x[0, 5:]):
            answer = ask.post("/sessions/a/feed", json={"x": part[:, None].tolist()})
            assert answer.status_code == 200, answer.text
        assert answer.json()["y"] == loaded.predict(x[:1])[0], answer.json()
        late = ask.post("/sessions/a/feed", json={"x": [[1.0]]})
        assert late.status_code != 200
        assert "at most the 12 steps" in late.text


def test_the_winner_is_marked(plane, capsys):
    assert main(["train", "table", "--data", "x.npz", *TINY]) == 0
    text = "".join(capsys.readouterr())
    (line,) = (line for line in text.splitlines() if line.endswith("chosen"))
    assert line.startswith("  logistic regression")
    assert "holds the weights, contest and plots" in text
    assert "does better than what can be left" not in text


def test_numbers_are_those_of_a_ridge(here):
    x, _ = rows()
    y = 50 + 10 * (x @ np.arange(12))
    np.savez("x.npz", x=x, y=y)
    _, pool = pool_of(kind="regression")
    one = rival(pool)
    assert (one.entry.name, one.entry.kind) == ("ridge regression", "linear")
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 10)))
    expected = ridge.fit(pool.flat, pool.answers).predict(pool.flat)
    np.testing.assert_allclose(one.model(pool.parts[0])[0][:, 0].detach(), expected, atol=1e-6)
    result = contest.run(recipes_of(kind="regression"), out="run")
    assert result.mixer == "linear"
    np.testing.assert_allclose(linrnn.load("run").predict(x)[:, 0], y, atol=1)


def recipes_of(**options):
    from dataclasses import replace

    config = recipes.untuned("table")
    model, few = train.ModelConfig(d_model=4, n_layers=1), train.TrainConfig(batch_size=4096)
    options = TableOptions(data="x.npz", **options)
    return replace(config, task_options=options, model=model, train=few)


def test_three_classes_and_one_that_did_not_occur(here):
    x, y = rows(3)
    np.savez("x.npz", x=x, y=y)
    _, pool = pool_of()
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    expected = pipeline.fit(pool.flat, pool.answers).predict_proba(pool.flat)
    shares = rival(pool).model(pool.parts[0])[0].softmax(-1).detach()
    np.testing.assert_allclose(shares, expected, atol=1e-6)
    occurs = torch.from_numpy(pool.answers != 1)
    fewer = Pool(pool.task, pool.take(occurs.nonzero()[:, 0]), 10)
    shares = rival(fewer).model(fewer.parts[0])[0].softmax(-1).detach()
    assert shares.shape[1] == 3
    assert float(shares[:, 1].max()) == 0
    assert np.mean(shares.argmax(1).numpy() == fewer.answers) > 0.9


def test_it_only_competes_where_lengths_differ_values_miss_or_there_are_many(here, monkeypatch):
    x, y = rows()
    np.savez("x.npz", x=x, y=y, lengths=12 - np.arange(300) % 2)
    one = rival(pool_of()[1])
    assert (one.model, one.entry.kind) == (None, "plain")
    x[3, 4] = np.nan
    np.savez("x.npz", x=x, y=y)
    one = rival(pool_of(missing="mask")[1])
    assert (one.model, one.entry.kind) == (None, "plain")
    np.savez("x.npz", x=np.nan_to_num(x), y=y)
    assert rival(pool_of()[1]).model is not None
    monkeypatch.setattr(_linear, "MOST_FEATURES", 11)
    assert rival(pool_of()[1]).model is None


def model_of_three():
    torch.manual_seed(0)
    weight, centre = torch.randn(2, 6).double(), torch.randn(3, 2).double()
    return LinearModel(weight, torch.randn(2).double(), centre).eval()


def test_pieces_steps_and_padding_give_the_same_answer():
    model, x = model_of_three(), torch.randn(5, 3, 2)
    y = model(x)[0]
    expected = (x.double() - model.centre).flatten(1) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(y, expected)
    _, entering = model(x[:, :1])
    torch.testing.assert_close(model(x[:, 1:], entering)[0], y)
    session = Session(model)
    for step in x[0]:
        answer = session.feed(step)
    torch.testing.assert_close(answer, y[0].detach())
    read = model.init_state(5)
    assert state.n_floats(read) == 3
    torch.testing.assert_close(model(x[:, :0])[0], model.head.bias.expand(5, 2))
    lengths = torch.tensor([1, 2, 3, 3, 2])
    padded = torch.cat([x, torch.full((5, 4, 2), 9.0)], 1)
    ends = [model(x[k : k + 1, :n])[0] for k, n in enumerate(lengths.tolist())]
    torch.testing.assert_close(model(padded, lengths=lengths)[0], torch.cat(ends))
    gaps = x.clone()
    gaps[:, 1] = torch.nan
    torch.testing.assert_close(model(gaps)[0], y - model(at_means(model, x))[0] + model.head.bias)
    twin = LinearModel.of_weights(model.state_dict())
    assert torch.equal(twin(x)[0], y)


def at_means(model, x):
    """The sequences with all but the second step at its mean."""
    other = model.centre.expand(len(x), 3, 2).clone()
    other[:, 1] = x[:, 1]
    return other


@pytest.mark.parametrize("capacity", [None, 4])
def test_a_stream_at_its_end_leaves_the_others_alone(capacity):
    model, x = model_of_three(), torch.randn(3, 3, 2)
    sessions = Sessions(model, capacity=capacity)
    for name in range(3):
        sessions.join(name)
    sessions.feed({0: x[0], 1: x[1, :2]})
    fed = sessions.feed_rows([0, 1, 2], x[:, 2])
    assert {place: type(error) for place, error in fed.errors.items()} == {0: ShapeError}
    torch.testing.assert_close(fed.y[1], model(x[1:2])[0][0].detach())
    assert [sessions.steps(name) for name in range(3)] == [3, 3, 1]
    assert torch.isfinite(sessions.feed({2: x[2, :2]})[2]).all()


def test_what_does_not_fit_is_refused():
    model = model_of_three()
    with pytest.raises(ShapeError, match="at most the 3 steps that the model was fitted to, got 4"):
        model(torch.zeros(1, 4, 2))
    with pytest.raises(ArgumentError, match="reset must be None"):
        model(torch.zeros(1, 3, 2), reset=torch.zeros(1, 3).bool())
    with pytest.raises(ShapeError, match="weight must have shape"):
        LinearModel(torch.zeros(2, 5), torch.zeros(2), torch.zeros(3, 2))
    with pytest.raises(ShapeError, match="weights must be those"):
        LinearModel.of_weights({})


@pytest.mark.slow
def test_the_law_on_a_table_without_an_order(here):
    bunch = datasets.load_breast_cancer()
    np.savez("x.npz", x=bunch.data.astype(float), y=bunch.target)
    config = recipes_of()
    result = contest.run(config, out="run")
    model, new, truth = logistic(Table(config.task_options))
    assert result.mixer == "linear"
    assert result.test_metric == pytest.approx(model.score(new, truth))
