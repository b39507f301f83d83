"""Agents with memory: environments as one, gains, one pass against steps, runs that go on."""

import functools

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium", reason="the extra rl is not installed")

from linrnn.reproductions import Setting  # noqa: E402
from linrnn.reproductions import popgym as reproduction  # noqa: E402
from linrnn.reproductions._page.verdict import EDGE  # noqa: E402
from linrnn.reproductions._runs import agents  # noqa: E402
from linrnn.reproductions._runs.agent import FRAMES, NO_MEMORY, Agent  # noqa: E402
from linrnn.reproductions._runs.environments import Columns, Environments  # noqa: E402
from linrnn.reproductions._runs.ppo import PPO, Trainer, gains  # noqa: E402

spaces = gymnasium.spaces
HOW = PPO(steps=128, environments=4, time=16, width=16)


class Count(gymnasium.Env):
    """Counts to three or to five; the fifth step ends an episode, and so may the time."""

    observation_space = spaces.Tuple((spaces.Discrete(6), spaces.Box(-9, 9, (2,), np.float32)))
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.most = 0, 3 + 2 * int(self.np_random.integers(2))
        return self._look(), {}

    def step(self, action):
        self.t += 1
        return self._look(), float(action[0]), self.t == 5, self.t == self.most, {}

    def _look(self):
        return self.t, np.array([self.t, -self.t], dtype=np.float32)


class Push(Count):
    action_space = spaces.Box(-2, 2, (1,), np.float32)


def test_an_observation_is_a_row_of_channels():
    columns = Columns(Count.observation_space)
    assert (columns.sizes, columns.width) == ([6, 0, 0], 8)
    rows = columns.channels(np.array([[2.0, 0.5, -1.0], [5.0, 0.0, 3.0]], dtype=np.float32))
    expected = [[0, 0, 1, 0, 0, 0, 0.5, -1], [0, 0, 0, 0, 0, 1, 0, 3]]
    assert rows.tolist() == expected
    nested = spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": spaces.MultiBinary(2)})
    assert Columns(nested).sizes == [2, 3, 2, 2]


def test_environments_begin_anew_and_tell_the_last_observation():
    env = Environments(Count, 3)
    env.reset(7)
    done = [env.step(np.zeros((3, 2), dtype=np.float32)) for _ in range(5)]
    overs = np.stack([step.ended | step.cut for step in done])
    assert overs.any()
    for step, over in zip(done, overs, strict=True):
        assert (step.seen[over, 0] == 0).all()
        assert np.isin(step.last[over, 0], (3, 5)).all()
        assert not (step.ended & step.cut).any()
        assert np.array_equal(step.seen[~over], step.last[~over])
    env.close()


@pytest.mark.slow
def test_processes_give_what_one_gives():
    pytest.importorskip("popgym", reason="popgym is not installed")
    make = functools.partial(reproduction.environment, "RepeatFirstEasy")
    lived = []
    for workers in (0, 2):
        env = Environments(make, 3, workers)
        steps = [env.reset(3)]
        for t in range(60):
            done = env.step(np.full((3, 1), t % 4, dtype=np.float32))
            steps += [done.seen, done.reward, done.ended]
        env.close()
        lived.append(steps)
    assert all(map(np.array_equal, *lived))


@pytest.mark.parametrize("mixer", ["gru", "mingru", "lru", "delta_net", FRAMES, NO_MEMORY])
def test_a_rollout_in_one_pass_is_its_steps(mixer):
    torch.manual_seed(0)
    agent = Agent(5, [3, 0], mixer, 16).eval()
    x, start = torch.randn(4, 9, 5), torch.rand(4, 9) < 0.3
    state, steps = None, []
    with torch.no_grad():
        for t in range(9):
            policy, value, state = agent(x[:, t : t + 1], state, start[:, t : t + 1])
            steps.append(torch.cat([policy, value[..., None]], -1))
        policy, value, _ = agent(x, None, start)
    whole = torch.cat([policy, value[..., None]], -1)
    torch.testing.assert_close(whole, torch.cat(steps, 1), rtol=1e-4, atol=1e-5)


def test_frames_do_not_reach_into_an_older_episode():
    agent = Agent(5, [3], FRAMES, 16)
    x = torch.randn(1, 6, 5, requires_grad=True)
    start = torch.tensor([[True, False, False, False, True, False]])
    policy, _, _ = agent(x, None, start)
    policy[0, 5].sum().backward()
    assert (x.grad[0].abs().sum(-1) > 0).tolist() == [False] * 4 + [True] * 2


def test_probabilities_are_those_of_torch():
    agent = Agent(5, [3, 0], NO_MEMORY, 16)
    with torch.no_grad():
        agent.log_std.fill_(-0.7)
    policy = torch.randn(7, 4)
    action = agent.sample(policy)
    log_prob, entropy = agent.log_prob(policy, action)
    choice = torch.distributions.Categorical(logits=policy[:, :3])
    real = torch.distributions.Normal(policy[:, 3], agent.log_std.exp())
    expected = choice.log_prob(action[:, 0]) + real.log_prob(action[:, 1])
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(entropy, choice.entropy() + real.entropy())
    many = agent.sample(policy[:1].expand(20_000, -1))[:, 0].long().bincount(minlength=3) / 20_000
    torch.testing.assert_close(many, choice.probs[0], rtol=0, atol=0.02)


def test_gains_are_those_of_their_definition():
    generator = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(2, 6, generator=generator) for _ in range(2))
    over = torch.rand(2, 6, generator=generator) < 0.3
    after = torch.randn(2, generator=generator)
    found = gains(reward, value, over, after, HOW)
    for row in range(2):
        for t in range(6):
            total, weight = 0.0, 1.0
            for k in range(t, 6):
                later = value[row, k + 1] if k < 5 else after[row]
                on = 0.0 if over[row, k] else 1.0
                total += weight * (reward[row, k] + HOW.gamma * on * later - value[row, k])
                weight *= HOW.gamma * HOW.lam * on
            torch.testing.assert_close(found[row, t], total)


@pytest.mark.parametrize("make", [Count, Push])
def test_the_first_pass_over_a_rollout_gives_what_acting_gave(make):
    trainer = Trainer(make, "mingru", HOW, 0)
    for _ in range(2):
        before = trainer.now.state
        rollout = trainer.collect()
        with torch.no_grad():
            policy, value, _ = trainer.agent(rollout.x, before, rollout.start)
            log_prob, _ = trainer.agent.log_prob(policy, rollout.action)
        torch.testing.assert_close(value, rollout.value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(log_prob, rollout.log_prob, rtol=1e-4, atol=1e-4)
    assert trainer.update(rollout, before)


def test_the_next_input_has_the_action_as_the_environment_takes_it():
    """A policy that multiplies what it did by four stays within bounds, and finite."""
    trainer = Trainer(Push, NO_MEMORY, HOW, 0)
    acting = trainer._step

    def growing(x, state, start):
        policy, value, state = acting(x, state, start)
        policy[..., -1] = 4 * x[:, -2] + 1.5
        return policy, value, state

    trainer._step = growing
    for _ in range(4):
        rollout = trainer.collect()
    assert rollout.action.abs().max() > 2
    before = rollout.x[:, 1:, -2] * ~rollout.start[:, 1:]
    took = rollout.action[:, :-1, 0].clamp(-2, 2) * ~rollout.start[:, 1:]
    torch.testing.assert_close(before, took)
    assert all(column.isfinite().all() for column in rollout)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(reproduction, "_missing", tuple)
    monkeypatch.setattr(reproduction, "environment", lambda name: Count())
    how = PPO(steps=1024, environments=8, time=32, width=8, epochs=1)
    size = reproduction.Size(
        families=("RepeatFirst", "RepeatPrevious"),
        systems=("minGRU", "no memory"),
        how=how,
        rates=(1e-3, 1e-2),
    )
    return {"cpu": size}


def test_a_page_goes_on_where_it_was(small, tmp_path):
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    part = reproduction.POPGym(small, most_runs=5).run(setting)
    assert not part.complete
    assert "runs are missing" in part.notes[-1]
    made = set((tmp_path / agents.FOLDER).rglob("*.json"))
    assert len(made) == 5
    times = {path: path.stat().st_mtime_ns for path in made}
    whole = reproduction.POPGym(small).run(setting)
    assert whole.complete
    assert {path: path.stat().st_mtime_ns for path in made} == times
    best, last, cost, tried = whole.tables
    assert [row[0] for row in best.rows] == ["minGRU", "no memory"]
    assert all(cell.endswith("(2)") for row in (*best.rows, *last.rows) for cell in row[1:])
    assert [row[0] for row in cost.rows] == [row[0] for row in tried.rows]
    assert len(whole.runs.rows) == 2 * 2 * 2 + 2  # and a rate of each memory that was not taken
    # of two rates the one that is taken is an end, which decides nothing at any family
    assert {verdict.why_not for verdict in whole.verdicts} == {EDGE}
    assert whole.verdicts[0].claim.endswith("better than no memory")
    assert reproduction.POPGym(small, most_runs=0).run(setting).tables == whole.tables
