"""Memories of one size on recall: the tuning, the rows, the verdicts."""

from dataclasses import replace

import pytest

from linrnn.compare import Row
from linrnn.compare.match import count_parameters
from linrnn.mixers import load
from linrnn.reproductions import Setting
from linrnn.reproductions import memory_recall as recall
from linrnn.reproductions._page.verdict import NOT_KEPT
from linrnn.reproductions._runs import tuned
from linrnn.reproductions._runs.trained import Column, Outcome
from linrnn.train.model import build_task


def _row(label, *values):
    return Row(
        label=label, metric="accuracy", values=values, failures=(), folders=(),
        n_parameters=1, n_state=1, memory=None, seconds_per_step=1.0,
    )  # fmt: skip


def test_every_memory_has_one_size():
    configs = [recall.row(recall.QUESTIONS["mqar, 8 pairs"], m) for m in recall.MEMORIES]
    for config in configs:
        layer = load(config.mixer)(config.model.d_model, **config.mixer_options)
        keys, columns = layer.init_state(1)["memory"].shape[2:]
        assert keys == recall.CHANNELS
        assert columns in (recall.CHANNELS, recall.CHANNELS + 1)  # and what is divided by
    counts = list(map(count_parameters, configs))
    assert max(counts) < 1.2 * min(counts)


def test_the_order_of_the_papers_is_claimed(made_runs):
    accuracies = {
        "plain, normalised": {0: 0.5, 1: 0.8},
        "decay by channel": {0: 0.7, 1: 0.71},
        "delta": {0: 0.9, 1: 0.91},
        "decay by head, fixed": {0: 1.0, 1: 1.0},
    }
    what = recall.MemoryRecall({"x": recall.QUESTIONS["mqar, 8 pairs"]})
    first, second, ends = what.claims(made_runs("x", accuracies), "cpu")
    assert (first.claim, first.held) == ("x: delta is better than decay by channel", (True, True))
    assert second.claim == "x: decay by channel is better than plain, normalised"
    assert second.held == (True, False)
    assert (ends.claim, ends.held) == ("x: delta is better than plain, normalised", (True, True))
    left = recall.MemoryRecall(
        {"x": recall.QUESTIONS["mqar, 8 pairs"]}, ["delta", "plain, normalised"]
    )
    (left,) = left.claims(made_runs("x", accuracies), "cpu")
    assert left.claim == "x: delta is better than plain, normalised"


def test_the_best_rate_on_validation_is_taken(tmp_path, monkeypatch):
    best = {"delta": 3e-3, "decay by channel": 1e-2}
    monkeypatch.setattr(
        tuned,
        "validation",
        lambda row, _: float(f"{best[row.label.split(' at ')[0]]:g}" in row.label),
    )
    asked = []

    def train(of, rows, setting):
        asked.append((of, {label: c.optim.lr for label, c in rows.items()}, setting.seeds))
        config = next(iter(rows.values()))
        task = build_task(config)
        found = tuple(_row(label, *[0.5] * len(setting.seeds)) for label in rows)
        column = Column(name=of, config=config, paper=config, steps=0)
        return Outcome(column=column, task=task, labels=tuple(rows), rows=found)

    monkeypatch.setattr(tuned, "train", train)
    monkeypatch.setattr(recall, "curves", lambda outcomes: {})
    name = "mqar, 8 pairs"
    what = recall.MemoryRecall({name: recall.QUESTIONS[name]}, list(best))
    found = what.run(Setting(scale="cpu", seeds=(4, 5), out=tmp_path))
    (first_name, tried, first), *further, (second_name, trained, seeds) = asked
    assert len(tried) == 2 * len(recall.RATES)
    assert (first, seeds) == ((4,), (4, 5))
    assert [(list(rows.values()), of) for _, rows, of in further] == [([0.0009], first)]
    assert trained == {f"{memory} at {rate:g}": rate for memory, rate in best.items()}
    assert trained.items() <= tried.items()
    assert name == first_name == second_name
    assert [row[0] for row in found.tables[0].rows] == list(best)
    assert [row[0] for row in found.tables[1].rows] == list(best)
    assert [judged.why_not for judged in found.verdicts] == [NOT_KEPT]  # nothing was trained


@pytest.mark.slow
def test_memories_are_tuned_and_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(recall, "RATES", (1e-9, 3e-2))
    question = recall.QUESTIONS["associative recall, 32 keys"]
    options = replace(
        question.options, length=8, vocabulary=4, train_size=256, validation_size=64, test_size=64
    )
    small = {"recall": replace(question, options=options, epochs=2)}
    found = recall.MemoryRecall(small, ["delta", "plain, normalised"]).run(
        Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    )
    results, tried = found.tables
    assert [row[2] for row in results.rows] == ["2", "2"]
    assert [len(row) for row in tried.rows] == [4, 4]
    for memory, *accuracies, taken in tried.rows:
        best = max(range(2), key=lambda i: float(accuracies[i].split()[0]))
        assert taken == f"{recall.RATES[best]:g}, an end"
        begins, ends = memory.split(",")[0], f"{recall.RATES[best]:g}-seed1"
        done = [path.parent.name for path in tmp_path.glob(f"runs/*/{begins}*/result.json")]
        (again,) = [name for name in done if name.endswith("seed1")]
        assert again.endswith(ends)
    assert [judged.claim for judged in found.verdicts] == [
        "recall: delta is better than plain, normalised"
    ]
