"""Which epoch is the best: of the better metric, and of the smaller loss where metrics tie."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from linrnn import train
from linrnn.train._bookkeeping import Bookkeeping


class Rows(train.Reporter):
    """Collects the rows of epochs."""

    def __init__(self):
        self.rows = []

    def epoch_done(self, report):
        self.rows.append(report)


def test_of_epochs_with_one_metric_that_of_the_smallest_loss_is_kept(tiny, tmp_path):
    """At so small a rate no answer changes, and the loss falls."""
    config = replace(tiny, optim=replace(tiny.optim, lr=1e-6, warmup_fraction=0.0))
    heard = Rows()
    result = train.run(config, out=tmp_path / "run", reporter=heard)
    metrics = [row.validation_metric for row in heard.rows]
    assert len(set(metrics)) < len(metrics)
    best = max(heard.rows, key=lambda row: (row.validation_metric, -row.validation_loss))
    assert result.best_step == best.step
    assert best is not heard.rows[0]


@pytest.mark.unchecked  # it stands for parts of a run
@pytest.mark.parametrize(
    ("metric", "loss", "higher", "lower"),
    [
        (0.6, 9.0, True, False),
        (0.4, 0.1, False, True),
        (0.5, 0.9, True, True),
        (0.5, 1.1, False, False),
        (0.5, 1.0, False, False),  # the first of two alike
    ],
)
def test_a_metric_counts_before_a_loss(metric, loss, higher, lower):
    module = SimpleNamespace(best={"metric": 0.5, "loss": 1.0, "step": 3})
    for higher_is_better, expected in ((True, higher), (False, lower)):
        task = SimpleNamespace(higher_is_better=higher_is_better)
        book = SimpleNamespace(run=SimpleNamespace(task=task))
        assert Bookkeeping._is_better(book, module, metric, loss) is expected
        assert Bookkeeping._is_better(book, SimpleNamespace(best={}), metric, loss)
