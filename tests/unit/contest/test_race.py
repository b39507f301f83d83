"""Who wins a contest: by more than chance, and only as long as there is hope."""

import math

import pytest
import torch

from linrnn.contest._race import Contest, Entry, Scale

RIGHT = Scale(higher_is_better=True, best=1.0, independent=math.inf)
ERROR = Scale(higher_is_better=False, best=0.0, independent=20)


def right(*wrong, n=40):
    scores = torch.ones(n, dtype=torch.float64)
    scores[list(wrong)] = 0
    return scores


def test_a_rival_wins_by_more_than_a_standard_error():
    assert not RIGHT.wins(right(), right())
    assert not RIGHT.wins(right(), right(3)), "one of forty is chance"
    assert RIGHT.wins(right(), right(3, 4, 5))
    assert not RIGHT.wins(right(6), right())
    errors = torch.rand(40, dtype=torch.float64)
    assert ERROR.wins(errors / 2, errors)
    assert not ERROR.wins(errors, errors / 2)


def test_windows_that_overlap_count_as_fewer():
    errors, noise = torch.rand(400, dtype=torch.float64), torch.randn(400, dtype=torch.float64)
    rival = errors - 0.1 + noise
    assert Scale(higher_is_better=False, best=0.0, independent=math.inf).wins(rival, errors)
    assert not Scale(higher_is_better=False, best=0.0, independent=2).wins(rival, errors)
    assert math.isnan(Scale(higher_is_better=True, best=1.0, independent=1).error_of(errors))


def test_a_rival_is_given_up_when_it_cannot_win():
    none = torch.zeros(40, dtype=torch.bool)
    half = torch.arange(40) < 20
    assert not RIGHT.may_win(right(), right(), none), "nothing is left to win"
    assert RIGHT.may_win(torch.zeros(40).double(), right(1, 2, 3, 30, 31), none)
    assert not RIGHT.may_win(right(1, 2, 3, 4), right(3, 30), half)
    far = right(*range(15))
    assert not RIGHT.may_win(far, right(*range(18, 40)), half), "far behind on what was judged"


def entries(*scores):
    kinds = ("bank", "trained", "plain")
    more = {"standard_error": 0.02, "seconds": 1.0}
    return [
        Entry(name=kind, kind=kind, score=score, **more)
        for kind, score in zip(kinds, scores, strict=True)
    ]


@pytest.mark.parametrize(("plain", "lost"), [(0.95, True), (0.91, False), (0.8, False)])
def test_a_plain_method_that_does_better_is_named(plain, lost):
    contest = Contest(
        metric="accuracy",
        higher_is_better=True,
        how="",
        entries=tuple(sorted(entries(0.9, 0.7, plain), key=lambda one: -one.score)),
        winner="bank",
    )
    assert (contest.lost_to is not None) == lost
    assert contest.table().splitlines()[0].startswith("who,kind,accuracy,standard_error")
    assert sum(line.endswith(",1") for line in contest.table().splitlines()) == 1
