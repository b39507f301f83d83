import pytest
import torch
from matplotlib.image import imread

from linrnn import tasks, train
from linrnn.backbone import SequenceModel
from linrnn.train._plots import _curves, draw_samples


@pytest.mark.parametrize("name", ["curves", "eigenvalues", "memory", "samples", "confusion"])
def test_plot_is_drawn(finished, name):
    image = imread(finished.folder / f"{name}.png")[..., :3]
    height, width, _ = image.shape
    assert height > 300
    assert width > 300
    grey = image.mean(-1)
    # paper, ink and more than one shade in between
    assert (grey > 0.99).mean() > 0.3
    assert (grey < 0.3).mean() > 0.001
    assert len(set((grey * 20).astype(int).flatten())) > 8
    assert b"<svg" in (finished.folder / f"{name}.svg").read_bytes()
    assert (finished.folder / f"{name}.drawn.csv").is_file() == (name != "samples")


class Answers(SequenceModel):
    """Answers 3 whatever it reads."""

    def __init__(self):
        super().__init__(1, 10, d_model=2, n_layers=1)

    def forward(self, x, lengths=None, reset=None):
        return torch.eye(10)[3].expand(len(x), 10), None


def test_samples_show_prediction_and_target_and_mark_what_is_wrong():
    task = tasks.load("digits")()
    test = task.datasets().test
    figure = draw_samples(task, Answers(), test)
    asked = [int(test[i * len(test) // 16][1]) for i in range(16)]
    assert [axes.get_xlabel() for axes in figure.axes] == [str(k) for k in asked]
    for axes, k in zip(figure.axes, asked, strict=True):
        assert axes.get_title() == ("3" if k == 3 else "× 3")
        assert (axes.spines["top"].get_linewidth() > 2) == (k != 3)
    assert f"{sum(k != 3 for k in asked)} wrong" in figure.get_suptitle()
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape == (8, 8)
    assert torch.equal(torch.as_tensor(shown), test[0][0].reshape(8, 8))


def test_inputs_that_are_no_images_have_no_samples():
    task = tasks.load("adding")().at_length(4)
    assert draw_samples(task, Answers(), task.datasets().test) is None


@pytest.mark.parametrize(
    ("name", "loss", "metric"),
    [
        ("digits", "cross-entropy (nats)", "accuracy (%)"),
        ("adding", "mean squared error", "mse"),
        ("forecast", "mean squared error", "mse"),
    ],
)
@pytest.mark.parametrize("epochs", [1, 2])
def test_curves_say_what_the_loss_is(name, loss, metric, epochs):
    rows = [
        train.EpochReport(
            epoch=i,
            step=i,
            train_loss=1 / i,
            train_metric=0.5,
            validation_loss=1 / i,
            validation_metric=0.5,
            lr=0.1,
            seconds=1.0,
        )
        for i in range(1, epochs + 1)
    ]
    left, right = _curves(rows, tasks.load(name)()).axes
    assert (left.get_ylabel(), right.get_ylabel()) == (loss, metric)
    assert all(tick == int(tick) for tick in left.get_xticks())
