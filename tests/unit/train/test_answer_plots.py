"""Confusions of classes, and numbers beside the true ones."""

import pytest
import torch
from torch.utils.data import TensorDataset

from linrnn import tasks
from linrnn.backbone import SequenceModel
from linrnn.train._answer_plots import confusions, draw_confusion, draw_forecasts


class Answers(SequenceModel):
    """Answers what it was made with, whatever it reads."""

    def __init__(self, y):
        super().__init__(1, 2, d_model=2, n_layers=1)
        self.y = y

    def forward(self, x, lengths=None, reset=None, dt=None):
        return self.y.expand(len(x), *self.y.shape), None


def test_confusions_are_counted_by_what_was_asked_and_answered():
    answered, asked = torch.tensor([2, 2, 0, 1]), torch.tensor([0, 0, 0, 2])
    assert confusions(answered, asked, 3).tolist() == [[1, 0, 2], [0, 0, 0], [0, 1, 0]]


def test_confusion_shows_every_test_example():
    task = tasks.load("digits")()
    test = task.datasets().test
    figure = draw_confusion(task, Answers(torch.eye(10)[3]), test)
    (axes,) = figure.axes
    counts = axes.images[0].get_array()
    assert counts.sum() == len(test)
    assert counts[:, 3].sum() == len(test)
    assert counts[5, 3] == sum(int(y) == 5 for _, y in test)
    assert axes.get_title() == f"{len(test):,} test examples, {counts[3, 3]} of them right"
    assert {text.get_text() for text in axes.texts} == {str(c) for c in counts[:, 3]}


def test_what_has_no_classes_for_a_sequence_has_no_confusion():
    adding = tasks.load("adding")().at_length(4)
    assert draw_confusion(adding, Answers(torch.zeros(1)), adding.datasets().test) is None
    copy = tasks.load("copy")()  # an answer a step
    steps = copy.datasets().test
    answers = Answers(torch.zeros(copy.sequence_length, copy.d_output))
    assert draw_confusion(copy, answers, steps) is None
    digits = tasks.load("digits")()
    assert draw_forecasts(digits, Answers(torch.eye(10)[3]), digits.datasets().test) is None


def test_single_numbers_are_points_against_the_truth():
    task = tasks.load("adding")().at_length(4)
    test = task.datasets().test
    (axes,) = draw_forecasts(task, Answers(torch.tensor([0.5])), test).axes
    truth = axes.lines[0].get_xdata()
    assert len(truth) == min(2_000, len(test))
    assert truth[0] == pytest.approx(float(test[0][1].flatten()[0]))
    assert set(axes.lines[0].get_ydata()) == {0.5}


class Steps(tasks.load("adding")):
    """Asks for two numbers at each of five steps."""

    number_names = ("north", "south")

    def numbers(self, y):
        return 10 * y


def test_numbers_over_steps_are_lines_beside_the_truth():
    truth = torch.arange(4 * 5 * 2.0).reshape(4, 5, 2)
    data = TensorDataset(torch.zeros(4, 5, 1), truth)
    figure = draw_forecasts(Steps(), Answers(torch.ones(5, 2)), data)
    assert len(figure.axes) == 2 * 3
    first = figure.axes[0]
    assert first.lines[0].get_ydata().tolist() == (10 * truth[0, :, 0]).tolist()
    assert first.lines[1].get_ydata().tolist() == [10.0] * 5
    assert [axes.get_ylabel() for axes in figure.axes][::3] == ["north", "south"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["truth", "answer of the model"]
