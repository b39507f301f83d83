"""Learning rules on delays: the loop and what it compares, the verdicts, and a small run."""

from dataclasses import replace

import pytest
import torch

from linrnn import learn
from linrnn.reproductions import Setting
from linrnn.reproductions import learning_rules as page
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._runs import rule_gradients as gradients
from linrnn.reproductions._runs.delays import error, signs, solved_readout
from linrnn.reproductions._runs.lessons import Rule, Run, trained, tuned


def run(value):
    return Run([(0, 1.0), (5, value)], value)


def claims(judged):
    return {line.claim: line.held for line in judged}


def test_a_delay_gives_signs_back_and_answering_nothing_has_an_error_of_one():
    batch = signs(3, 9, 4, torch.Generator().manual_seed(0))
    assert set(batch.x.flatten().tolist()) == {-1.0, 1.0}
    assert torch.equal(batch.target[:, 4:], batch.x[:, :-4])
    assert not batch.target[:, :4].any()
    silent = page.SHORT.model(0)
    torch.nn.init.zeros_(silent.head.weight)
    torch.nn.init.zeros_(silent.head.bias)
    assert error(silent, batch, 4) == 1


def test_traces_take_the_steps_of_back_propagation_and_a_cut_does_not():
    delay = replace(page.LONG, steps=4, length=30)
    curves = {
        label: trained(delay, rule, 0.03, 0).curve[-1][1] for label, rule in page.RULES.items()
    }
    assert curves[page.CHUNKED] == pytest.approx(curves["bptt"], rel=1e-3)
    assert abs(curves[page.TRUNCATED] - curves["bptt"]) > 2e-3 * curves["bptt"]


def test_what_is_held_stays_and_the_rest_learns(monkeypatch):
    seen = {}
    model_of = type(page.SHORT).model

    def kept(delay, seed):
        seen["model"] = model_of(delay, seed)
        return seen["model"]

    monkeypatch.setattr(type(page.SHORT), "model", kept)
    trained(replace(page.SHORT, steps=2), page.RULES[page.HELD], 0.03, 1)
    before = dict(model_of(page.SHORT, 1).named_parameters())
    same = {name for name, p in seen["model"].named_parameters() if torch.equal(p, before[name])}
    held = {f"blocks.0.mixer.{name}" for name in page.RULES[page.HELD].held}
    assert same == {"encoder.weight", "encoder.bias"} | held


@pytest.mark.parametrize("beyond", [0.2, float("nan")])
def test_the_best_rate_of_the_first_seed_is_taken_for_all(beyond, monkeypatch, tmp_path):
    asked = []

    def fake(delay, rule, rate, seed):
        asked.append((rate, seed))
        return run({0.01: float("nan"), 0.03: 0.2, 0.1: 0.1, 0.33: beyond}[rate] + seed)

    monkeypatch.setattr("linrnn.reproductions._runs.lessons.trained", fake)
    setting = Setting(scale="cpu", seeds=(0, 1, 2), out=tmp_path)
    found, table, kept = tuned(page.SHORT, {"a": Rule(learner="bptt")}, setting)
    assert asked == [(0.01, 0), (0.03, 0), (0.1, 0), (0.33, 0), (0.1, 1), (0.1, 2)]
    assert [one.error for one in found["a"]] == [0.1, 1.1, 2.1]
    assert [(row.lr, row.seed) for row in kept] == asked
    part = Runs(tuple(kept)).part(page.SHORT.name)
    assert part.values("a") == {0: 0.1, 1: 1.1, 2: 2.1}
    assert "end" not in part.why_not("a")
    tried = "nan at 0.01", "0.2 at 0.03", "0.1 at 0.1", f"{beyond:g} at 0.33"
    assert table.rows == [["a", *tried, "0.1"]]


def test_a_readout_that_is_solved_for_is_that_of_least_squares():
    delay = replace(page.LONG, options={"d_state": 5, "r_min": 0.5, "r_max": 0.9}, length=80)
    model, generator = delay.model(3).double(), torch.Generator().manual_seed(0)
    batch = signs(4000, 80, 20, generator)
    lam = model.mixers[0].eigenvalues()
    state, states = torch.zeros(4000, 5, dtype=lam.dtype), []
    for u in batch.x.double().unbind(1):
        state = lam * state + u
        states.append(torch.cat([state.real, state.imag, u], 1))
    read, wanted = states[-1].detach(), batch.target[:, -1].double()
    weights = torch.linalg.lstsq(read, wanted).solution
    expected = (read @ weights - wanted).square().mean().item()
    assert 0.2 < expected < 0.999
    assert solved_readout(delay, 3, 0.0) == pytest.approx(expected, rel=0.03)
    assert solved_readout(delay, 3, 1.0) > expected


@pytest.mark.slow
def test_estimates_of_rank_one_are_found_unbiased_and_a_biased_one_is_found_out(monkeypatch):
    assert gradients.noise(4, 0, rows=32, draws=8).miss == pytest.approx(0, abs=3)
    build = learn.build

    def scaled(name, options=None):
        rule = build(name, options)
        if name == "uoro":
            step = rule.step
            rule.step = lambda model, batch, state, loop: step(
                model, batch, state, replace(loop, loss=lambda y, t: 2 * loop.loss(y, t))
            )
        return rule

    monkeypatch.setattr("linrnn.learn.build", scaled)
    assert gradients.noise(4, 0, rows=256, draws=8).miss > 3
    # of many cells, whose noise in all directions would hide a bias along the gradient
    found = gradients.noise(30, 0, rows=64, draws=8)
    assert found.miss > 3 > 3 * found.error > 0


@pytest.mark.slow
def test_noise_of_one_estimate_does_not_go_by_the_rows_of_a_batch():
    few, many = (gradients.noise(6, 1, rows=rows, draws=16).spread for rows in (4, 64))
    assert few == pytest.approx(many, rel=0.4)


def test_lags_are_judged_by_seed(kept_errors):
    errors = dict.fromkeys(page.RULES, (0.01, 0.5)) | {page.TRUNCATED: (0.6, 0.4)}
    found = claims(page.judged_lags(kept_errors("lag 20", errors)))
    assert found[f"lag 20: {page.CHUNKED} solves it"] == (True, False)
    assert found[f"lag 20: {page.TRUNCATED} does not solve it"] == (True, True)
    better = f"lag 20: {page.CHUNKED} has a smaller error than {page.TRUNCATED}"
    assert found[better] == (True, False)
    short = claims(page.judged_lags(kept_errors("lag 5", errors)))
    assert len(short) == 3
    assert f"lag 5: {page.TRUNCATED} solves it" in short


def part_of(name, rows):
    return Runs(tuple(rows)).part(name)


def test_noise_is_judged_by_seed(tmp_path):
    setting = Setting(scale="cpu", seeds=(0,), out=tmp_path)

    def judged(**noises):
        sizes = [int(n[1:]) for n in noises]
        made = {size: [noise] for size, noise in zip(sizes, noises.values(), strict=True)}
        return page.judged_noise(part_of(page.NOISE, page._rows_of_noise(made, setting)), sizes)

    def noise(spread, miss=1.0):
        return gradients.Noise(spread, miss, 0.1)

    held = [line.held for line in judged(n3=noise(1.0), n10=noise(2.0), n30=noise(3.0))]
    assert held == [(True,)] * 3
    held = [line.held for line in judged(n3=noise(1.0), n10=noise(3.0), n30=noise(2.0))]
    assert held == [(True,), (False,), (True,)]
    for miss in (3.5, -3.5):
        assert judged(n3=noise(1.0), n10=noise(2.0, miss))[0].differences == (-0.5,)


def test_stacks_are_judged_by_seed(tmp_path):
    ring, setting = (0.0, 0.9), Setting(scale="cpu", seeds=(0,), out=tmp_path)

    def angles(online, stepwise):
        return [{(page.ONLINE, 0): online, (page.STEPWISE, 0): stepwise}]

    def held():
        part = part_of(page.ANGLES, page._rows_of_stacks(stacks, setting))
        return [line.held for line in page.judged_stacks(part, [ring], [1, 2], 0)]

    stacks = {
        (ring, 1): angles([1.0, 0.99], [0.7, 0.6]),
        (ring, 2): angles([0.9, 1.0, 0.95], [0.5, 0.6, 0.8]),
    }
    assert held() == [(True,)] * 3
    stacks[ring, 2] = angles([1.0, 0.99, 0.7], [0.5, 0.6, 0.8])
    assert held() == [(False,), (None,), (False,)]


def test_the_last_layer_of_a_stack_is_exact_and_the_first_is_not():
    found = gradients.angles(2, (0.9, 0.99), page.LAYERED, (0, 3), 0)
    for step in (0, 3):
        first, last, _ = found[page.ONLINE, step]
        assert last > page.SAME > first
        assert max(found[page.STEPWISE, step][:2]) < page.SAME


def test_a_small_run_leaves_the_whole_page(tmp_path):
    delays = [replace(delay, steps=1, length=delay.lag + 3) for delay in page.Size().delays]
    size = page.Size(
        delays=delays, depths=(1, 2), rings=((0.0, 0.9),), looks=(0, 1), cells=(3, 5), rows=2,
        draws=2,
    )  # fmt: skip
    found = page.LearningRules(size).run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    short, long, dense, readouts, noise, before, after, *tried = found.tables
    assert [row[0] for row in long.rows] == [row[0] for row in short.rows] == list(page.RULES)
    assert [row[0] for row in dense.rows] == list(page.DENSE_RULES)
    assert len(readouts.rows) == 2 * len(page.PENALTIES)
    assert [row[0] for row in noise.rows] == ["3 cells", "5 cells"]
    assert [row[1] for row in before.rows] == ["1.000"] * 2
    assert before.rows != after.rows
    assert len(tried) == 3
    for table in found.tables:
        assert all(len(row) == len(table.head) for row in table.rows)
    assert all(len(line.held) == 2 for line in found.verdicts)
    assert len(found.verdicts) == 3 + 6 + 3 + 3 + 6
    assert found.verdicts == tuple(page.LearningRules(size).claims(found.runs, "cpu"))
    assert set(found.figures) == {"errors", "alignment"}
