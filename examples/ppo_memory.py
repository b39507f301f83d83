"""Proximal policy optimisation in one file, with a memory of any mixer, on a task that needs one.

    python examples/ppo_memory.py --mixer mingru

The task: each step shows one of four symbols, and the agent names the first of the episode. It
prints the share of right answers: about 0.3 is the best that an agent without memory
(--mixer none) can do. The state before a rollout is kept once, and minibatches are whole rows.
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

import linrnn
from linrnn.state import map_state

SYMBOLS, ROWS, TIME, EPOCHS, PARTS = 4, 16, 64, 4, 4
COLUMNS = ("x", "start", "action", "log_prob", "value", "reward", "over", "right")
GAMMA, LAMBDA, CLIP, ENTROPY, RATE = 0.9, 0.95, 0.2, 0.01, 3e-3


class Recall(gym.Env):
    """Name the first symbol. An episode never ends: it is cut off after 12 to 20 steps."""

    observation_space = gym.spaces.Box(0, 1, (SYMBOLS + 1,), np.float32)
    action_space = gym.spaces.Discrete(SYMBOLS)

    def reset(self, *, seed=None, options=None):
        """Begin an episode."""
        super().reset(seed=seed)
        self.left, self.first = int(self.np_random.integers(12, 21)), self._draw()
        return self._look(self.first, begins=True), {}

    def step(self, action):
        """Score the answer, and show another symbol."""
        self.left -= 1
        right = float(action == self.first)
        return self._look(self._draw(), begins=False), right, False, self.left == 0, {}

    def _draw(self) -> int:
        return int(self.np_random.integers(SYMBOLS))

    def _look(self, symbol: int, begins: bool):
        return np.append(np.eye(SYMBOLS)[symbol], begins).astype(np.float32)


class Agent(nn.Module):
    """``(x, state, start) -> (actions, values, state)`` of (batch, time, ...) at once."""

    def __init__(self, mixer: str, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SYMBOLS + 1, width), nn.Tanh())
        self.memory = None if mixer == "none" else linrnn.RNN(mixer, width, width, batch_first=True)
        self.actor, self.critic = nn.Linear(width, SYMBOLS), nn.Linear(width, 1)

    def forward(self, x: Tensor, state, start: Tensor):
        """Read whole rollouts, or steps: a start inside begins anew."""
        x = self.encoder(x)
        if self.memory is not None:
            x, state = self.memory(x, state, reset=start)
        return Categorical(logits=self.actor(x)), self.critic(x).squeeze(-1), state


@torch.no_grad()
def collect(env: SyncVectorEnv, agent: Agent, x: Tensor, state, start: Tensor):
    """A rollout of each row as a dict of (rows, time, ...), and what the next one begins with."""
    steps = []
    for _ in range(TIME):
        policy, value, state = agent(x[:, None], state, start[:, None])
        action = policy.sample()
        seen, scores, ended, cut, info = env.step(action[:, 0].numpy())
        reward = right = torch.as_tensor(scores, dtype=torch.float32)
        if cut.any():  # truncated: add the value of the final observation
            last = torch.tensor(seen)  # a copy
            last[cut] = torch.as_tensor(np.stack(info["final_obs"][cut]))
            later = agent(last[:, None], state, torch.zeros(ROWS, 1) > 0)[1][:, 0]
            reward = torch.where(torch.as_tensor(cut), right + GAMMA * later, right)
        over = torch.as_tensor(ended | cut)
        action, value, log_prob = action[:, 0], value[:, 0], policy.log_prob(action)[:, 0]
        steps.append((x, start, action, log_prob, value, reward, over, right))
        x, start = torch.as_tensor(seen), over
    columns = [torch.stack(column, 1) for column in zip(*steps, strict=True)]
    rollout = dict(zip(COLUMNS, columns, strict=True))
    after = agent(x[:, None], state, start[:, None])[1][:, 0]
    gain, gains = torch.zeros(ROWS), []
    for t in reversed(range(TIME)):
        on = (~rollout["over"][:, t]).float()  # after an end, or a cut, there is nothing to add
        error = rollout["reward"][:, t] + GAMMA * on * after - rollout["value"][:, t]
        gain = error + GAMMA * LAMBDA * on * gain
        gains.insert(0, gain)
        after = rollout["value"][:, t]
    rollout["gain"] = torch.stack(gains, 1)
    return rollout, (x, state, start)


def loss_of(agent: Agent, batch: dict[str, Tensor], state) -> Tensor:
    """PPO's loss of whole rows, read in one pass from the states before them."""
    policy, value, _ = agent(batch["x"], state, batch["start"])
    ratio = (policy.log_prob(batch["action"]) - batch["log_prob"]).exp()
    gain = (batch["gain"] - batch["gain"].mean()) / (batch["gain"].std() + 1e-8)
    gained = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
    error = (value - batch["value"] - batch["gain"]).square().mean()
    return 0.5 * error - gained - ENTROPY * policy.entropy().mean()


def train(mixer: str, steps: int, seed: int) -> float:
    """Train an agent; the share of right answers in the last rollouts."""
    torch.manual_seed(seed)
    env = SyncVectorEnv([Recall] * ROWS, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent(mixer)
    optimizer = torch.optim.Adam(agent.parameters(), RATE, eps=1e-5)
    now = torch.as_tensor(env.reset(seed=seed)[0]), None, torch.ones(ROWS, dtype=torch.bool)
    shares: list[float] = []
    for update in range(1, steps // (ROWS * TIME) + 1):
        before = now[1]
        rollout, now = collect(env, agent, *now)
        shares.append(float(rollout["right"].mean()))
        for _ in range(EPOCHS):
            for rows in torch.randperm(ROWS).chunk(PARTS):
                batch = {name: z[rows] for name, z in rollout.items()}
                loss = loss_of(agent, batch, rows_of(before, rows))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        if update % 10 == 0:
            print(f"{update * ROWS * TIME:7,} steps: {np.mean(shares[-5:]):.3f} right", flush=True)
    return float(np.mean(shares[-5:]))


def rows_of(state, rows: Tensor):
    """The state of some rows, which lie on axis 1; None at the very beginning."""
    return None if state is None else map_state(lambda h: h[:, rows], state)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mixer", default="mingru", help="any of `linrnn list mixers`, or none")
    parser.add_argument("--steps", type=int, default=30_000, help="of all rows together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    share = train(args.mixer, args.steps, args.seed)
    print(f"{args.mixer}, seed {args.seed}: {share:.3f} of the answers right at the end")
