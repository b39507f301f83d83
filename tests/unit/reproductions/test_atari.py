"""Pong from single frames: screens, the agent that reads them, runs of some hundred steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium", reason="the extra rl is not installed")

from linrnn.errors import LinrnnError  # noqa: E402
from linrnn.reproductions import Setting  # noqa: E402
from linrnn.reproductions import atari as reproduction  # noqa: E402
from linrnn.reproductions._runs import screens  # noqa: E402
from linrnn.reproductions._runs.agent import FRAMES, NO_MEMORY, Agent, Screen  # noqa: E402


@pytest.fixture(scope="module")
def ale():
    pytest.importorskip("ale_py", reason="ale-py is not installed")


@pytest.mark.parametrize("mixer", ["mingru", FRAMES, NO_MEMORY])
def test_a_rollout_of_screens_in_one_pass_is_its_steps(mixer):
    torch.manual_seed(0)
    agent = Agent(20 * 18 + 3, [6], mixer, 16, screen=(20, 18)).eval()
    x, start = torch.rand(2, 5, 363), torch.rand(2, 5) < 0.3
    state, steps = None, []
    with torch.no_grad():
        for t in range(5):
            policy, _, state = agent(x[:, t : t + 1], state, start[:, t : t + 1])
            steps.append(policy)
        policy, _, _ = agent(x, None, start)
    torch.testing.assert_close(policy, torch.cat(steps, 1), rtol=1e-4, atol=1e-5)


def test_pixels_are_rows_of_a_screen_and_the_rest_is_beside_them():
    torch.manual_seed(0)
    screen = Screen((20, 24), 2, 8)
    pixels, others = torch.rand(1, 1, 20, 24), torch.rand(1, 1, 2)
    seen = screen.convolutions(pixels)
    expected = screen.join(torch.cat([seen, others[0]], -1))
    torch.testing.assert_close(screen(torch.cat([pixels.flatten(2), others], -1))[0], expected)


@pytest.mark.usefixtures("ale")
def test_a_small_screen_is_the_mean_of_its_blocks():
    env = screens.Screens(reproduction.PONG, (5, 4))
    small, _ = env.reset(seed=3)
    plain = gymnasium.make(reproduction.PONG, obs_type="grayscale")
    full, _ = plain.reset(seed=3)
    assert small.shape == env.observation_space.shape == (42, 40)
    assert env.observation_space.contains(small)
    for row, column in ((0, 0), (20, 7), (41, 39)):
        block = full[5 * row : 5 * row + 5, 4 * column : 4 * column + 4]
        assert small[row, column] == pytest.approx(block.mean() / 255, rel=1e-5)
    small, reward, ended, cut, _ = env.step(2)
    full, *others, _ = plain.step(2)
    assert [reward, ended, cut] == others
    assert small[30, 5] == pytest.approx(full[150:155, 20:24].mean() / 255, rel=1e-5)
    env.close()
    plain.close()


@pytest.mark.usefixtures("ale")
def test_a_block_that_does_not_divide_a_screen_is_refused():
    with pytest.raises(ValueError, match=r"block must divide \(210, 160\), got \(4, 4\)"):
        screens.Screens(reproduction.PONG, (4, 4))


@pytest.mark.usefixtures("ale")
@pytest.mark.parametrize("scale", ["hour", "full"])
def test_every_scale_learns_for_a_few_hundred_steps(scale, tmp_path):
    size = reproduction.SIZES[scale]
    how = replace(size.how, steps=256, environments=2, time=64, epochs=1, workers=0)
    sizes = {scale: replace(size, how=how)}
    setting = Setting(scale=scale, seeds=(0,), out=tmp_path)
    part = reproduction.Atari(sizes, most_runs=2).run(setting)
    assert not part.complete
    assert [row[0] for row in part.tables[0].rows] == ["GRU", "minGRU"]
    assert any(note.startswith("3 runs are missing") for note in part.notes)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(made) == 2
    again = reproduction.Atari(sizes, most_runs=0).run(setting)
    assert again.tables == part.tables
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_without_ale_the_page_says_what_to_install(tmp_path, monkeypatch):
    real = screens.importlib.import_module

    def without(name):
        if name == "ale_py":
            raise ImportError("No module named 'ale_py'")
        return real(name)

    monkeypatch.setattr(screens.importlib, "import_module", without)
    with pytest.raises(LinrnnError, match="pip install gymnasium ale-py"):
        screens.Screens(reproduction.PONG, (5, 4))
    findings = reproduction.Atari().run(Setting(scale="hour", seeds=(0,), out=tmp_path))
    assert findings.tables == ()
    assert not findings.complete
    assert "ale-py" in findings.notes[-1]


def test_returns_are_tables_and_verdicts(tmp_path, monkeypatch):
    from linrnn.reproductions._runs import agents

    def trained(job):
        best = {NO_MEMORY: -20.0, FRAMES: -5.0}.get(job.mixer, -3.0) + job.seed
        return agents.Played(
            best=best, last=best - 1, curve=[(100, best)], parameters=7, floats=2,
            acting=1.0, learning=2.0,
        )  # fmt: skip

    monkeypatch.setattr(agents, "_trained", trained)
    findings = reproduction.Atari().run(Setting(scale="hour", seeds=(0, 1), out=tmp_path))
    assert findings.complete
    best, last, cost = findings.tables
    assert best.rows[0] == ["GRU", "-2.50 [-3.00, -2.00] (2)"]
    assert last.rows[-1] == ["no memory", "-20.50 [-21.00, -20.00] (2)"]
    assert len(cost.rows) == 5
    assert [verdict.differences for verdict in findings.verdicts] == [(17.0, 17.0)] * 3 + [
        (15.0, 15.0)
    ]
    assert np.array_equal(list(findings.figures), ["returns"])
