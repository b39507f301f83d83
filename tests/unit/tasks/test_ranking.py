"""The area under the ROC curve and the average precision, beside scikit-learn's."""

import numpy as np
import pytest
import torch

from linrnn.tasks._kinds.ranking import auroc_contributions, average_precision

metrics = pytest.importorskip("sklearn.metrics")


@pytest.fixture(params=range(6))
def drawn(request):
    """Margins, of which many are equal for odd seeds, and labels of both classes."""
    rng = np.random.RandomState(request.param)
    n = 5 + 40 * request.param
    positive = rng.rand(n) < 0.3
    positive[:2] = [True, False]
    margins = rng.randn(n) + positive
    if request.param % 2:
        margins = margins.round()
    return torch.from_numpy(margins), torch.from_numpy(positive)


def test_mean_is_the_area_of_scikit_learn(drawn):
    margins, positive = drawn
    parts = auroc_contributions(margins, positive)
    assert parts.mean().item() == pytest.approx(
        metrics.roc_auc_score(positive.numpy(), margins.numpy()), abs=1e-12
    )
    assert auroc_contributions(-margins, positive).mean() == pytest.approx(1 - parts.mean().item())


def test_average_precision_is_that_of_scikit_learn(drawn):
    margins, positive = drawn
    assert average_precision(margins, positive) == pytest.approx(
        metrics.average_precision_score(positive.numpy(), margins.numpy()), abs=1e-12
    )


def test_spread_of_the_contributions_is_delongs_error(drawn):
    """Written out: variances of the placements of either class, over their counts."""
    margins, positive = (x.numpy() for x in drawn)
    wins = margins[positive][:, None] - margins[~positive][None]
    wins = (wins > 0) + 0.5 * (wins == 0)  # (positives, negatives)
    variance = wins.mean(1).var() / positive.sum() + wins.mean(0).var() / (~positive).sum()
    parts = auroc_contributions(*drawn)
    assert parts.var(correction=0).item() / len(parts) == pytest.approx(variance, abs=1e-12)


def test_error_is_that_of_new_samples():
    """The standard error beside the deviation over 300 new samples of one distribution."""
    generator = torch.Generator().manual_seed(0)
    areas, errors = [], []
    for _ in range(300):
        positive = torch.arange(200) < 40
        margins = torch.randn(200, generator=generator) + positive
        parts = auroc_contributions(margins, positive)
        areas.append(parts.mean().item())
        errors.append(parts.std().item() / 200**0.5)
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.15)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_no_area(label):
    parts = auroc_contributions(torch.arange(3.0), torch.full((3,), label))
    assert parts.isnan().all()
    assert np.isnan(average_precision(torch.arange(3.0), torch.zeros(3)))
