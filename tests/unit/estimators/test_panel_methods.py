"""The methods that compete in `PanelForecaster`: what each is made for, and plain loops."""

import numpy as np
import pytest

from linrnn.estimators._panel import plain, selection
from linrnn.estimators._panel.autoregression import autoregression, integrated
from linrnn.estimators._panel.batch import Batch, change_scale, is_seasonal
from linrnn.estimators._panel.contestants import forecasts
from linrnn.estimators._panel.engine import choose, forecast, say
from linrnn.estimators._panel.smoothing import Form, smooth
from linrnn.estimators._panel.theta import optimised_theta, theta

STEPS = np.arange(40.0)
SEASON = np.array([3.0, -1.0, 1.0, -3.0])
NOISE = np.random.default_rng(0).normal(size=40)


def batch(*rows):
    n = np.array([len(row) for row in rows])
    y = np.zeros((len(rows), n.max()))
    for k, row in enumerate(rows):
        y[k, : len(row)] = row
    return Batch(y, n)


def ahead(values):
    """Each series without its last four steps, and these."""
    return batch(values[:-4]), values[-4:]


# ------------------------------------------------------------------- smoothing

MADE = {
    "smoothing": (Form(), np.full(40, 5.0)),
    "trend": (Form(trend=True), 2 + 0.5 * STEPS),
    "season": (Form(season="add"), 10 + np.tile(SEASON, 10)),
    "trend and season": (Form(trend=True, season="add"), 0.5 * STEPS + np.tile(SEASON, 10)),
    "season times": (
        Form(trend=True, season="multiply"),
        (20 + STEPS) * np.tile(1 + SEASON / 10, 10),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_each_form_goes_on_with_what_it_is_made_for(name):
    form, values = MADE[name]
    past, future = ahead(values)
    np.testing.assert_allclose(smooth(past, form, 4, 4).forecast[0], future, rtol=0.01)


def test_a_damped_trend_flattens():
    values = 10 * (1 - 0.9 ** STEPS[:20])
    past, future = batch(values[:12]), values[12:]
    damped = smooth(past, Form(trend=True, damped=True), 1, 8).forecast[0]
    straight = smooth(past, Form(trend=True), 1, 8).forecast[0]
    assert np.abs(damped - future).max() < 0.8 * np.abs(straight - future).max()


def test_simple_smoothing_is_that_of_a_loop_at_its_best_rate():
    walk = NOISE.cumsum()
    found = smooth(batch(walk), Form(), 1, 1)
    squares, answers = [], []
    start = np.polynomial.Polynomial.fit(np.arange(1, 11.0), walk[:10], 1)(1.0)
    for alpha in np.linspace(0.01, 0.999, 200):
        level, total = start, 0.0
        for y in walk:
            total += (y - level) ** 2
            level += alpha * (y - level)
        squares.append(total)
        answers.append(level)
    assert found.squares[0] <= min(squares) * 1.002
    np.testing.assert_allclose(found.forecast[0, 0], answers[int(np.argmin(squares))], atol=0.1)


def test_rows_of_other_lengths_do_not_touch_one_another():
    values = [20 + NOISE[:k].cumsum() for k in (40, 9, 25, 2)]
    together = forecasts(batch(*values), 4, 3, np.arange(4))
    for k, row in enumerate(values):
        alone = forecasts(batch(row), 4, 3, np.zeros(1, int))
        for name, answer in alone.items():
            np.testing.assert_allclose(together[name][k], answer[0], rtol=1e-7, err_msg=name)


# ------------------------------------------------------------------- theta and autoregressions


def test_theta_is_that_of_hyndman_and_billah_at_its_best_rate():
    walk = 50 + 0.4 * STEPS + NOISE.cumsum()
    slope = np.polyfit(STEPS + 1, walk, 1)[0]
    best = (np.inf, np.empty(0))
    for alpha in np.linspace(0.02, 0.98, 25):
        level, total = walk[0], 0.0
        for t in range(1, 40):
            drift = slope / 2 * (1 - (1 - alpha) ** t) / alpha
            total += (walk[t] - level - drift) ** 2
            level += alpha * (walk[t] - level)
        tail = (1 - (1 - alpha) ** 40) / alpha
        best = min(best, (total, level + slope / 2 * (np.arange(3) + tail)), key=lambda x: x[0])
    np.testing.assert_allclose(theta(batch(walk), 1, 3)[0], best[1], rtol=1e-9)


def test_theta_takes_a_season_out_that_multiplies_or_adds():
    for values in ((20 + STEPS) * np.tile(1 + SEASON / 10, 10), STEPS - 20 + np.tile(SEASON, 10)):
        past, future = ahead(values)
        assert is_seasonal(past, 4).all()
        np.testing.assert_allclose(optimised_theta(past, 4, 4)[0], future, rtol=0.05, atol=0.5)


def test_autoregressions_find_their_coefficients():
    x = [1.0]
    for e in NOISE[1:] * 0.05:
        x.append(-0.8 * x[-1] + e)
    past, _ = ahead(10 + np.array(x))
    said = autoregression(past, 1, 1)[0, 0] - 10
    np.testing.assert_allclose(said, -0.8 * (past.last[0] - 10), atol=0.06)
    summed = Batch(np.cumsum(past.y, 1), past.n)
    np.testing.assert_allclose(integrated(summed, 1, 1)[0, 0] - summed.last[0], 10 + said, atol=0.1)


# ------------------------------------------------------------------- rare demands

DEMANDS = np.array([0, 2, 0, 0, 3, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0, 2.0])


def test_rare_demands_are_those_of_the_textbook_loops():
    size, gap = DEMANDS[DEMANDS > 0].mean(), len(DEMANDS) / (DEMANDS > 0).sum()
    share = 1 / gap
    crostons, tsbs = [], []
    for rate in (0.02, 0.05, 0.1, 0.2, 0.3):
        z, p, q, since, error = size, gap, 1, 1, 0.0
        y_size, y_share, other = size, share, 0.0
        for y in DEMANDS:
            error += (y - z / p) ** 2
            other += (y - y_share * y_size) ** 2
            if y > 0:
                z, p, since = z + rate * (y - z), p + rate * (since - p), 1
                y_size += rate * (y - y_size)
            else:
                since += 1
            y_share += rate * ((y > 0) - y_share)
        crostons.append((error, q * z / p))
        tsbs.append((other, y_share * y_size))
    rows = batch(DEMANDS)
    np.testing.assert_allclose(plain.croston(rows, 1, 2)[0], min(crostons)[1])
    np.testing.assert_allclose(plain.tsb(rows, 1, 2)[0], min(tsbs)[1])
    assert (plain.sba(rows, 1, 2) < plain.croston(rows, 1, 2)).all()


def test_what_is_not_rare_has_no_such_answer():
    for row in (np.ones(9), np.r_[-1.0, DEMANDS], np.zeros(9)):
        assert np.isnan(plain.croston(batch(row), 1, 1)).all()


def test_rare_demands_compete_and_are_never_forecast_below_none():
    rng = np.random.default_rng(1)
    rows = batch(*(rng.poisson(0.4, 60) * rng.integers(1, 5, 60) for _ in range(8)))
    chosen = choose(rows, 1, 4, None)
    answer = forecast(rows, 1, 4, None, chosen)
    assert (answer >= 0).all()
    assert np.isfinite(answer).all()
    rare = [chosen.names.index(name) for name in ("croston", "sba", "tsb")]
    assert chosen.weights[rare].sum(0).mean() > 0.2
    # about the mean demand, which is the best forecast there is
    mean = rows.y.sum(1) / rows.n
    assert np.abs(answer.mean(1) - mean).mean() < 0.5 * mean.mean()


# ------------------------------------------------------------------- transforms and shares


def test_growth_by_a_factor_is_for_logarithms():
    rng = np.random.default_rng(2)
    values = np.exp(0.12 * STEPS + 0.02 * rng.normal(size=40))
    past, future = ahead(values)
    chosen = choose(past, 1, 4, None)
    best = chosen.names[int(np.nanargmin(chosen.scores[:, 0]))]
    assert best.startswith("log ")
    np.testing.assert_allclose(forecast(past, 1, 4, None, chosen)[0], future, rtol=0.1)


def test_a_back_test_reads_nothing_that_came_later():
    """The forecast from an origin is the same whatever follows the origin."""
    one, other = NOISE.cumsum(), NOISE.cumsum()
    other[30:] += 100
    trials = [selection.back_test(batch(y), 4, 3, say=say) for y in (one, other)]
    early = trials[0].offsets >= 13  # origins that are judged before step 30 alone
    assert early.any()
    for k, name in enumerate(trials[0].names):
        np.testing.assert_array_equal(
            trials[0].errors[k][:, early], trials[1].errors[k][:, early], err_msg=name
        )


def test_shares_are_of_the_best_and_add_up():
    scores = np.array([[1.0, np.nan], [0.5, 2.0], [0.6, 2.2], [0.9, 9.0]])
    shares = selection.weights_of(scores)
    np.testing.assert_allclose(shares.sum(0), 1)
    assert (shares[0] == 0).all()
    assert (shares[3] == 0).all()
    np.testing.assert_allclose(shares[2, 0] / shares[1, 0], (0.5 / 0.6) ** 4)


def test_a_series_without_an_origin_has_the_scores_of_all():
    errors = np.ones((2, 3, 4, 1))
    errors[1, :2] = 0.25
    errors[:, 2] = np.nan  # the third was never judged
    trial = selection.Trial(("naive", "theta"), np.arange(4, 0, -1), errors, np.ones((3, 4)))
    scores = selection.scores_of(trial)
    np.testing.assert_allclose(scores[:, 2], [1.0, 0.25], rtol=1e-6)


def test_the_scale_is_that_of_mase():
    rows = batch(np.tile(SEASON, 3) + 1.5 * np.arange(12), np.array([1.0, 4.0]))
    np.testing.assert_allclose(change_scale(rows, 4), [6.0, 3.0])
