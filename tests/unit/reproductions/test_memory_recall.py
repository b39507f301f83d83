"""Memories of one size on recall: the tuning, the rows, the verdict."""

from dataclasses import replace

import pytest

from linrnn.compare import Row
from linrnn.compare._match import count_parameters
from linrnn.mixers import load
from linrnn.reproductions import Setting, _tuned
from linrnn.reproductions import memory_recall as recall
from linrnn.reproductions._trained import Column, Outcome
from linrnn.train._model import build_task


def _row(label, *values):
    return Row(
        label=label, metric="accuracy", values=values, failures=(), folders=(),
        n_parameters=1, n_state=1, memory=None, seconds_per_step=1.0,
    )  # fmt: skip


def test_every_memory_has_one_size():
    base = recall.config(next(iter(recall.QUESTIONS.values())))
    for memory in recall.MEMORIES:
        config = recall._with(base, memory, 1e-3)
        layer = load(config.mixer)(config.model.d_model, **config.mixer_options)
        keys, columns = layer.init_state(1)["memory"].shape[2:]
        assert keys == recall.CHANNELS
        assert columns in (recall.CHANNELS, recall.CHANNELS + 1)  # and what is divided by
    counts = [count_parameters(recall._with(base, m, 1e-3)) for m in recall.MEMORIES]
    assert max(counts) < 1.2 * min(counts)


@pytest.mark.parametrize(
    ("delta", "decay", "plain", "word"),
    [
        ((0.9, 0.91), (0.7, 0.71), (0.5, 0.51), "confirmed"),
        ((0.7, 0.71), (0.9, 0.91), (0.5, 0.51), "contradicted"),
        ((0.7, 0.9), (0.71, 0.89), (0.5, 0.51), "undecided"),
        ((0.9,), (0.7,), (0.5,), "undecided"),
    ],
)
def test_a_verdict_needs_seeds_that_do_not_overlap(delta, decay, plain, word):
    names = ("delta", "decay by channel", "plain, normalised")
    rows = {n: _row(n, *v) for n, v in zip(names, (delta, decay, plain), strict=True)}
    assert recall._verdict(rows)[2] == word


def test_the_best_rate_on_validation_is_taken(tmp_path, monkeypatch):
    best = {"delta": 3e-3, "decay by channel": 1e-2}
    monkeypatch.setattr(
        _tuned,
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

    monkeypatch.setattr(_tuned, "train", train)
    monkeypatch.setattr(recall, "curves", lambda outcomes: {})
    name = "mqar, 8 pairs"
    what = recall.MemoryRecall({name: recall.QUESTIONS[name]}, list(best))
    found = what.run(Setting(scale="cpu", seeds=(4, 5), out=tmp_path))
    (first_name, tried, first), (second_name, trained, seeds) = asked
    assert len(tried) == 2 * len(recall.RATES)
    assert (first, seeds) == ((4,), (4, 5))
    assert trained == {f"{memory} at {rate:g}": rate for memory, rate in best.items()}
    assert trained.items() <= tried.items()
    assert name == first_name == second_name
    assert [row[0] for row in found.tables[1].rows] == list(best)
    assert [row[-1] for row in found.tables[1].rows] == ["0.003", "0.01"]


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
    verdict, results, tried = found.tables
    assert [row[2] for row in results.rows] == ["2", "2"]
    assert [len(row) for row in tried.rows] == [3, 3]
    for memory, *accuracies in tried.rows:
        taken = next(row[-1] for row in results.rows if row[0] == memory)
        best = max(range(2), key=lambda i: float(accuracies[i].split()[0]))
        assert float(taken) == recall.RATES[best]
    assert verdict.rows[0][0] == "recall"
