"""Policies of Stable-Baselines3 with memory: losses beside a loop, padding, files, spaces."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

reason = "the extra rl is not installed"
pytest.importorskip("sb3_contrib", reason=reason)
gymnasium = pytest.importorskip("gymnasium", reason=reason)

from gymnasium import spaces  # noqa: E402
from sb3_contrib import RecurrentPPO  # noqa: E402
from stable_baselines3.common.callbacks import ConvertCallback  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor  # noqa: E402

from linrnn.errors import ArgumentError, DTypeError, NonFiniteError  # noqa: E402
from linrnn.interop.sb3 import RNNPolicy  # noqa: E402

SPACES = {
    "box": spaces.Box(-1, 1, (3,)),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "small image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
    "choices": spaces.MultiDiscrete([3, 4]),
    "dict of choices": spaces.Dict({"a": spaces.MultiDiscrete([3, 4])}),
}


class Short(gymnasium.Env):
    """Random observations; episodes of a few steps, every other one cut off by time."""

    def __init__(self, space="box"):
        self.observation_space, self.action_space = SPACES[space], spaces.Discrete(2)
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left, self.episode = int(self.np_random.integers(2, 7)), self.episode + 1
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        over, cut = self.left == 0, self.episode % 2 == 0
        reward = float(self.np_random.normal())
        return self.observation_space.sample(), reward, over and not cut, over and cut, {}


class Double(FlattenExtractor):
    def forward(self, observations):
        return super().forward(observations).double()


class Looped(RNNPolicy):
    """The same policy with a loop over steps, each row alone."""

    @staticmethod
    def _process_sequence(features, lstm_states, episode_starts, lstm):
        rows = torch.cat(lstm_states, -1)[0].float()
        x = features.unflatten(0, (len(rows), -1))
        start = episode_starts.reshape(x.shape[:2])
        outputs, states = [], []
        for row in range(len(x)):
            tree = lstm.unpack(rows[row : row + 1, : lstm.numbers])
            for t in range(x.shape[1]):
                if start[row, t]:
                    tree = lstm.layers.init_state(1)
                y, tree = lstm.layers(x[row : row + 1, t : t + 1], tree)
                outputs.append(y[0])
            states.append(lstm.pack(tree))
        last = torch.nn.functional.pad(torch.cat(states), (0, lstm.numbers % 2))
        h, c = last.chunk(2, 1)
        return torch.cat(outputs), (h[None], c[None])


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def agent(policy=RNNPolicy, env=Short, *, n_steps=16, batch_size=32, n_epochs=1, **options):
    options = {"lstm_hidden_size": 16, "net_arch": [8], **options}
    return RecurrentPPO(
        policy,
        VecMonitor(DummyVecEnv([env, env])),
        n_steps=n_steps,
        batch_size=batch_size,
        n_epochs=n_epochs,
        policy_kwargs=options,
        seed=0,
    )


def updated(policy, **options):
    """Losses and weights after one rollout and one minibatch."""
    made = agent(policy, features_extractor_class=Double, **options)
    made.learn(32)
    names = [
        f"train/{name}" for name in ("loss", "value_loss", "policy_gradient_loss", "approx_kl")
    ]
    weights = [p.detach().clone() for p in made.policy.parameters()]
    return [made.logger.name_to_value[name] for name in names], weights


@pytest.mark.parametrize(
    "options",
    [
        {"mixer": "mingru"},
        {"mixer": "lru", "enable_critic_lstm": False},
        {"mixer": "gru", "shared_lstm": True, "enable_critic_lstm": False},
        {"mixer": "hippo"},
        {"mixer": "attention", "mixer_options": {"window": 3}},
        {"mixer": "mingru,gla", "n_lstm_layers": 2, "residual": True},
    ],
    ids=str,
)
def test_the_loss_of_a_minibatch_is_that_of_a_loop(options, in_float64):
    ours, weights = updated(RNNPolicy, **options)
    theirs, expected = updated(Looped, **options)
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    for mine, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mixer", ["mingru", "lru", "gru", "mlstm"])
def test_padding_between_sequences_changes_nothing(mixer):
    made = agent(mixer=mixer)
    made.learn(32)
    (batch,) = made.rollout_buffer.get(32)
    padded = batch.mask < 0.5
    assert padded.any()

    def losses(observations):
        made.policy.zero_grad()
        actions = batch.actions.long().flatten()
        read = made.policy.evaluate_actions(
            observations, actions, batch.lstm_states, batch.episode_starts
        )
        sum(z.flatten()[~padded].sum() for z in read).backward()
        gradients = [p.grad.clone() for p in made.policy.parameters()]
        return [z.flatten()[~padded].detach() for z in read], gradients

    other = batch.observations.clone()
    other[padded] = 1e3
    for one, two in zip(losses(batch.observations), losses(other), strict=True):
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mixer", ["mingru", "hippo", "swa"])
def test_a_minibatch_gives_what_the_rollout_gave(mixer):
    options = {"mixer": mixer}
    if mixer == "swa":
        options = {"mixer": "attention", "mixer_options": {"window": 4}}
    made = agent(**options)
    made._setup_learn(32)
    callback = ConvertCallback(lambda *_: True)
    callback.init_callback(made)
    made.collect_rollouts(made.env, callback, made.rollout_buffer, 16)
    for batch in made.rollout_buffer.get(20):
        real = batch.mask > 0.5
        values, log_prob, _ = made.policy.evaluate_actions(
            batch.observations,
            batch.actions.long().flatten(),
            batch.lstm_states,
            batch.episode_starts,
        )
        torch.testing.assert_close(values.flatten()[real], batch.old_values[real])
        torch.testing.assert_close(log_prob[real], batch.old_log_prob[real])


@pytest.mark.parametrize("space", SPACES)
def test_observations_of_every_kind(space):
    made = agent(env=lambda: Short(space), n_steps=8, batch_size=16)
    made.learn(16)
    assert isinstance(made.policy.features_extractor, NatureCNN) == (space == "image")


@pytest.mark.parametrize("mixer", ["lru", "hippo"])
def test_a_file_has_the_policy_and_goes_on(mixer, tmp_path):
    made = agent(mixer=mixer)
    made.learn(32)
    made.save(tmp_path / "agent.zip")
    made.policy.save(tmp_path / "policy.zip")
    observations = [np.stack([SPACES["box"].sample() for _ in range(2)]) for _ in range(5)]

    def played(policy):
        state, start, actions = None, np.ones(2, bool), []
        for t, observation in enumerate(observations):
            action, state = policy.predict(observation, state, start, deterministic=True)
            actions.append(action)
            start = np.array([t == 2, False])
        return np.stack(actions), [part.view(np.int32) for part in state]

    expected = played(made)
    again = RecurrentPPO.load(tmp_path / "agent.zip", env=made.get_env())
    for other in (again, RNNPolicy.load(tmp_path / "policy.zip")):
        actions, state = played(other)
        assert np.array_equal(actions, expected[0])
        assert all(map(np.array_equal, state, expected[1]))
    again.learn(32)
    returns, lengths = evaluate_policy(
        again, made.get_env(), n_eval_episodes=4, return_episode_rewards=True
    )
    assert len(returns) == 4
    assert max(lengths) <= 6


def test_the_example_of_the_page_leaves_its_own_file_alone(tmp_path, monkeypatch):
    """Without a logger, the folder of a log stays among the temporary files."""
    page = Path(__file__).parents[3] / "docs" / "agents.md"
    example = re.search(r"```py\n(from sb3_contrib.*?)```", page.read_text("utf-8"), re.DOTALL)[1]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    short = example.replace("learn(20_000)", "learn(8)").replace("64}", "8}, n_steps=8, n_epochs=1")
    exec(compile(short, str(page), "exec"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["agent.zip"]


@pytest.mark.unchecked
def test_attention_without_a_window_is_refused():
    with pytest.raises(ArgumentError, match="RNNPolicy: mixer must have a state of constant size"):
        agent(mixer="attention")


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Box(-1, 1, ()), "observation_space"),
        (spaces.Box(-1, 1, (0,)), "observation_space"),
        (spaces.Dict({"a": spaces.Box(-1, 1, ())}), "a"),
        (spaces.Dict({"a": SPACES["small image"]}), "images in a dict"),
    ],
    ids=["number", "empty", "number in a dict", "small image in a dict"],
)
def test_observations_no_extractor_reads_are_refused(space, name, monkeypatch):
    monkeypatch.setitem(SPACES, "it", space)
    with pytest.raises(ArgumentError, match=f"^RNNPolicy: {name} must have .*, got .*"):
        agent(env=lambda: Short("it"))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "options",
    [
        {"lstm_hidden_size": 0},
        {"lstm_hidden_size": 2.0},
        {"n_lstm_layers": 0},
        {"n_lstm_layers": "2"},
        {"residual": "no"},
        {"shared_lstm": 1},
        {"enable_critic_lstm": True, "shared_lstm": True},
        {"lstm_kwargs": {"bidirectional": True}},
    ],
    ids=str,
)
def test_an_option_that_does_not_fit_is_named(options):
    with pytest.raises(ArgumentError, match=rf"^RNNPolicy: {next(iter(options))} must "):
        agent(**options)


@pytest.mark.unchecked
def test_a_state_of_other_streams_is_refused():
    """Two observations with the state of one stream would be two steps of it."""
    made = agent(mixer="gla")
    one, two = np.zeros((1, 3), np.float32), np.zeros((2, 3), np.float32)
    h, c = made.predict(one)[1]
    rules = {
        "state must have a row for each of 2": {"observation": two, "state": (h, c)},
        "state must be a pair": {"observation": one, "state": (h[..., 1:], c[..., 1:])},
        "state must be a pair of": {"observation": one, "state": (h,)},
        "state must be a pair of arrays": {"observation": one, "state": h},
        "episode_start must": {"observation": two, "episode_start": np.array([True])},
        "observation must": {"observation": two[:0]},
    }
    for rule, call in rules.items():
        with pytest.raises(ArgumentError, match=f"^RNNPolicy: {rule}"):
            made.predict(**call)
    for dtype in (torch.float64, torch.bfloat16):
        with pytest.raises(DTypeError, match=f"^RNNPolicy: the parameters must .* got {dtype}"):
            agent(mixer="gla").policy.to(dtype).predict(one)


@pytest.mark.unchecked
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("deterministic", [True, False])
def test_numbers_that_no_action_follows_from_are_refused(value, deterministic):
    made = agent(mixer="gla")
    one = np.zeros((1, 3), np.float32)
    _, state = made.predict(one)
    bad, worse = one.copy(), [part.copy() for part in state]
    bad[0, 1] = worse[0][0, 0, 0] = value
    wrong = {
        "observation": {"observation": bad, "state": state},
        "state": {"observation": one, "state": tuple(worse)},
    }
    for name, call in wrong.items():
        with pytest.raises(NonFiniteError, match=f"^RNNPolicy: {name} must be finite, got NaN"):
            made.predict(**call, deterministic=deterministic)
    with pytest.raises(NonFiniteError, match=r"^RNNPolicy: observation must be finite"):
        made.predict(bad[0], deterministic=deterministic)
