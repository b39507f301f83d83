"""Proximal policy optimisation with memory: rollouts step by step, learned from in one pass."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from linrnn.reproductions._runs.agent import Agent
from linrnn.reproductions._runs.environments import Environments
from linrnn.state import map_state
from linrnn.typing import State

EPISODES = 100
"""A mean return is that of this number of last episodes, as published."""


@dataclass(frozen=True, kw_only=True)
class PPO:
    """How it is learned; all fields are the same for every memory but the rate."""

    steps: int
    """Steps of all environments together."""
    rate: float = 1e-3
    environments: int = 16
    time: int = 128
    """Steps of an environment in a rollout."""
    epochs: int = 4
    parts: int = 2
    """Minibatches of an epoch, each of whole rollouts of some environments."""
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    entropy: float = 0.02
    value: float = 0.5
    norm: float = 0.5
    """Norm that gradients are clipped to."""
    scale: float = 10.0
    """Factor of rewards; that of the returns that are reported is 1."""
    width: int = 128
    screen: tuple[int, int] | None = None
    """Rows and columns of the pixels that an observation begins with; None where it has none."""
    workers: int = 0
    """Processes of the environments; 0 for none of their own."""


class Point(NamedTuple):
    """A point of a curve."""

    steps: int
    mean: float
    """Return of the last episodes."""


class Now(NamedTuple):
    """State that a rollout begins with."""

    x: Tensor
    state: State | None
    start: Tensor


class Rollout(NamedTuple):
    """Experience of a rollout: (environments, time, ...)."""

    x: Tensor
    start: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    gain: Tensor


class Trainer:
    """Environments and an agent that learns in them.

    Args:
        make: makes an environment.
        mixer, options: of the memory, as those of `Agent`.
        how: settings.
        seed: of weights, draws and environments.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        mixer: str,
        how: PPO,
        seed: int,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.how = how
        self.env = Environments(make, how.environments, how.workers)
        observation, action = self.env.observations, self.env.actions
        # an action before, and whether an episode begins, are told with what is seen
        inputs = observation.width + action.width + 1
        sizes = action.sizes
        self.agent = Agent(inputs, sizes, mixer, how.width, options, how.screen)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), how.rate, eps=1e-5)
        self.returns: deque[float] = deque(maxlen=EPISODES)
        self.running = np.zeros(how.environments)
        start = np.ones(how.environments, dtype=bool)
        x = self.channels(self.env.reset(1_000 * seed), None, start)
        self.now = Now(x, None, torch.from_numpy(start))
        self.steps = 0
        self.acting = self.learning = 0.0  # seconds of the processor

    def channels(self, observation: Any, action: Any, start: Any) -> Tensor:
        """Input of the agent: the observation, the action before, whether an episode begins."""
        parts = [self.env.observations.channels(observation)]
        last_action = np.zeros((len(observation), self.env.actions.width), dtype=np.float32)
        if action is not None:
            last_action = self.env.actions.channels(action) * ~start[:, None]
        parts += [last_action, start[:, None].astype(np.float32)]
        return torch.from_numpy(np.concatenate(parts, 1))

    def learn(self, look: Callable[[Point], Any] = lambda point: None) -> list[Point]:
        """Train to the end, or until a number is none; the mean return after each update."""
        curve = []
        while self.steps < self.how.steps:
            entering = self.now.state
            times = [time.process_time()]
            rollout = self.collect()
            times.append(time.process_time())
            self.steps += self.how.environments * self.how.time
            if not self.update(rollout, entering):
                break
            times.append(time.process_time())
            self.acting += times[1] - times[0]
            self.learning += times[2] - times[1]
            if len(self.returns) == EPISODES:
                curve.append(Point(self.steps, float(np.mean(self.returns))))
                look(curve[-1])
        return curve

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Play for a while, and say what each step gained."""
        lived, rewards, overs = [], [], []
        x, state, start = self.now
        for _ in range(self.how.time):
            policy, value, state = self._step(x, state, start)
            action = self.agent.sample(policy)
            lived.append((x, start, action, policy, value))
            # its next input has the action as the environment takes it: one out of bounds, fed
            # back as it was drawn, could grow from step to step until it overflows
            executed = self.env.allowed(action.numpy())
            done = self.env.step(executed)
            reward = self.how.scale * torch.from_numpy(done.reward)
            over = done.ended | done.cut
            if done.cut.any():  # more would have come: its value stands for that
                later = self.channels(done.last, executed, np.zeros_like(over))
                worth = self._step(later, state, torch.zeros_like(start))[1]
                reward = reward + torch.from_numpy(done.cut) * self.how.gamma * worth
            self._count(done.reward, over)
            rewards.append(reward)
            x, start = self.channels(done.seen, executed, over), torch.from_numpy(over)
            overs.append(start)
        self.now = Now(x, state, start)
        last_value = self._step(x, state, start)[1]
        columns = [torch.stack(column, 1) for column in zip(*lived, strict=True)]
        xs, starts, action, policy, value = columns
        gain = gains(torch.stack(rewards, 1), value, torch.stack(overs, 1), last_value, self.how)
        log_prob, _ = self.agent.log_prob(policy, action)
        return Rollout(xs, starts, action, log_prob, value, gain)

    def _step(
        self, x: Tensor, state: State | None, start: Tensor
    ) -> tuple[Tensor, Tensor, State | None]:
        """Policy, value and next state of all environments, x is (environments, channels)."""
        policy, value, state = self.agent(x[:, None], state, start[:, None])
        return policy[:, 0], value[:, 0], state

    def _count(self, reward: Any, over: Any) -> None:
        """Add up returns of episodes."""
        self.running += reward
        for row in over.nonzero()[0]:
            self.returns.append(float(self.running[row]))
        self.running[over] = 0

    def update(self, rollout: Rollout, entering: State | None) -> bool:
        """Learn from a rollout that began in some states; False if a number was none."""
        for _ in range(self.how.epochs):
            for rows in torch.randperm(self.how.environments).chunk(self.how.parts):
                batch = Rollout(*(column[rows] for column in rollout))
                state = _rows(entering, rows)
                loss = self._loss(batch, state)
                if not loss.isfinite():
                    return False
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), self.how.norm)
                self.optimizer.step()
        return True

    def _loss(self, batch: Rollout, state: State | None) -> Tensor:
        """Loss of whole rows, read in one pass from the states before them."""
        how = self.how
        policy, value, _ = self.agent(batch.x, state, batch.start)
        log_prob, entropy = self.agent.log_prob(policy, batch.action)
        ratio = (log_prob - batch.log_prob).exp()
        gain = (batch.gain - batch.gain.mean()) / (batch.gain.std() + 1e-8)
        gained = torch.minimum(ratio * gain, ratio.clamp(1 - how.clip, 1 + how.clip) * gain)
        error = (value - batch.value - batch.gain).square().mean()
        loss: Tensor = how.value * error - gained.mean() - how.entropy * entropy.mean()
        return loss


def _rows(state: State | None, rows: Tensor) -> State | None:
    """State of some environments, which lie on axis 1; None at the very beginning."""
    return None if state is None else map_state(lambda h: h[:, rows], state)


def gains(reward: Tensor, value: Tensor, over: Tensor, next_value: Tensor, how: PPO) -> Tensor:
    """Generalised advantages (environments, time): after an episode there is nothing to add."""
    gain, out = torch.zeros_like(next_value), []
    for t in reversed(range(reward.shape[1])):
        on = (~over[:, t]).to(reward)
        error = reward[:, t] + how.gamma * on * next_value - value[:, t]
        gain = error + how.gamma * how.lam * on * gain
        out.append(gain)
        next_value = value[:, t]
    return torch.stack(out[::-1], 1)
