"""Policies that are told a return: learned from records, and played in a simulator."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linrnn.backbone import SequenceModel
from linrnn.reproductions._runs.bodies import BODIES, LIMIT, Policy, play
from linrnn.reproductions._runs.episodes import Array, Episode, Windows

CLONING = "none"
"""Name beside those of mixers: each step by itself, and no return is told."""
SCALE = 1000.0
"""Returns are read in units of this."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How it is learned; all fields are the same for every layer but the rate."""

    steps: int
    rate: float = 1e-3
    time: int = 20
    """Steps of a window, of three tokens each."""
    batch: int = 64
    width: int = 128
    layers: int = 3
    dropout: float = 0.1
    warmup: int = 10_000
    decay: float = 1e-4
    episodes: int = 100
    """Played in the simulator after training."""


class Decider(nn.Module):
    """Tokens (return to go, observation, action) to the action after each observation.

    Args:
        numbers: of an observation.
        actions: numbers of an action.
        mixer: a name, or `CLONING`.
        how: sizes.
        options: of the mixer.
    """

    mean: Tensor
    spread: Tensor

    def __init__(
        self, numbers: int, actions: int, mixer: str, how: Learning, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        width, self.time, self.actions = how.width, how.time, actions
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("spread", torch.ones(numbers))
        self.look = nn.Linear(numbers, width)
        self.clones = mixer == CLONING
        self.model: Any
        if self.clones:
            layers: list[nn.Module] = []
            for _ in range(how.layers):
                layers += [nn.ReLU(), nn.Linear(width, width), nn.Dropout(how.dropout)]
            self.model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, actions))
            return
        self.ask, self.act = nn.Linear(1, width), nn.Linear(actions, width)
        self.place = nn.Embedding(LIMIT, width)
        self.norm = nn.LayerNorm(width)
        self.model = SequenceModel(
            width,
            actions,
            mixer=mixer,
            mixer_options=options,
            d_model=width,
            n_layers=how.layers,
            dropout=how.dropout,
            **_BLOCKS,
        )

    def forward(
        self, observations: Tensor, actions: Tensor, to_go: Tensor, place: Tensor
    ) -> Tensor:
        """Actions (batch, time, numbers) of windows (batch, time, ...)."""
        look = self.look((observations - self.mean) / self.spread)
        action: Tensor
        if self.clones:
            action = self.model(look).tanh()
            return action
        tokens = torch.stack([self.ask(to_go / SCALE), look, self.act(actions)], 2)
        tokens = self.norm(
            tokens + self.place(place.long().clamp(max=LIMIT - 1))[:, :, None]
        )  # (batch, time, 3, width)
        y, _ = self.model(tokens.flatten(1, 2))
        action = y[:, 1::3].tanh()
        return action

    def step(
        self, observations: Tensor, before: Tensor, gone: Tensor, place: int, state: Any
    ) -> Any:
        """The next action and state, of one step of each body.

        Args:
            seen: (batch, numbers).
            before: the last action; ignored at place 0.
            gone: return to go (batch, 1).
            place: of the step in its episode.
            state: of the model.
        """
        at = [self.place.weight[max(place - 1, 0)], self.place.weight[place]]
        if place:
            _, state = self.model.step(self.norm(self.act(before) + at[0]), state)
        _, state = self.model.step(self.norm(self.ask(gone / SCALE) + at[1]), state)
        look = self.look((observations - self.mean) / self.spread)
        y, state = self.model.step(self.norm(look + at[1]), state)
        return y.tanh(), state


_BLOCKS: dict[str, Any] = {
    "block": "mlp",
    "norm": "layer",
    "pool": "none",
    "identity_ends": "in",
    "final_norm": True,
}
"""A recurrence and an MLP, each with a skip: the blocks of the paper."""


def learn(
    episodes: Sequence[Episode],
    mixer: str,
    how: Learning,
    seed: int,
    options: Mapping[str, Any],
) -> tuple[Decider, list[tuple[int, float]]]:
    """A policy of recorded episodes, and the loss along its training."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    windows = Windows(episodes, how.time)
    sizes = episodes[0].observations.shape[1], episodes[0].actions.shape[1]
    decider = Decider(*sizes, mixer, how, options)
    decider.mean.copy_(torch.from_numpy(windows.mean))
    decider.spread.copy_(torch.from_numpy(windows.spread))
    optimizer = torch.optim.AdamW(decider.parameters(), how.rate, weight_decay=how.decay)
    curve, every = [], max(1, how.steps // 40)
    total = 0.0
    for step in range(1, how.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = how.rate * min(1.0, step / max(how.warmup, 1))
        loss = _loss(decider, windows.draw(how.batch, random))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(decider.parameters(), 0.25)
        optimizer.step()
        total += float(loss.detach())
        if step % every == 0:
            curve.append((step, total / every))
            total = 0.0
    return decider.eval(), curve


def _loss(decider: Decider, batch: Sequence[Array]) -> Tensor:
    """Mean square error of the actions of a batch, padding left out."""
    observations, actions, to_go, place, inside = (torch.from_numpy(part) for part in batch)
    guess = decider(observations, actions, to_go, place[..., 0])
    error: Tensor = (guess - actions)[inside].square().mean()
    return error


class Window:
    """Plays from the last steps, which are read anew for every action, as the paper does."""

    def __init__(self, decider: Decider, target: float, rows: int) -> None:
        self.decider, self.gone = decider, np.full(rows, target)
        self.past: list[list[Array]] = []
        self.count = 0

    @torch.no_grad()
    def __call__(self, observations: Array, rewards: Array) -> Array:
        """An action for each body."""
        self.gone = self.gone - rewards
        unknown = np.zeros((len(observations), self.decider.actions))
        place = np.full(len(observations), self.count)
        self.past = self.past[1 - self.decider.time :] if self.decider.time > 1 else []
        self.past.append([observations, unknown, self.gone[:, None], place])
        columns = (np.stack(part, 1) for part in zip(*self.past, strict=True))
        action: Array = self.decider(*(torch.from_numpy(c).float() for c in columns))[:, -1].numpy()
        self.past[-1][1] = action
        self.count += 1
        return action


class Carried:
    """Plays from a state that goes from step to step, and reads each token once."""

    def __init__(self, decider: Decider, target: float, rows: int) -> None:
        self.decider, self.gone, self.count = decider, np.full(rows, target), 0
        self.state = decider.model.init_state(rows)
        self.action = torch.zeros(rows, decider.actions)

    @torch.no_grad()
    def __call__(self, observations: Array, rewards: Array) -> Array:
        """An action for each body."""
        self.gone = self.gone - rewards
        gone = torch.from_numpy(self.gone[:, None]).float()
        args = torch.from_numpy(observations).float(), self.action, gone, self.count, self.state
        self.action, self.state = self.decider.step(*args)
        self.count += 1
        action: Array = self.action.numpy()
        return action


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Results of a run."""

    returns: Sequence[float]
    """Return of every episode that was played from windows."""
    lengths: Sequence[int]
    carried: Sequence[float]
    """The same, played from a state; none of a policy without one."""
    carried_lengths: Sequence[int]
    curve: Sequence[tuple[int, float]]
    """Steps, and the loss."""
    parameters: int
    learning: float
    """Milliseconds of the processor a step of training."""
    acting: float
    """Microseconds of the processor a step of all bodies, from windows; without the simulator."""
    carrying: float
    """The same from a state; 0 without one."""


def decide(
    body: str,
    episodes: Sequence[Episode],
    mixer: str,
    how: Learning,
    seed: int,
    options: Mapping[str, Any],
) -> Decided:
    """Learn from records, and play."""
    start = time.process_time()
    decider, curve = learn(episodes, mixer, how, seed, options)
    learning = 1e3 * (time.process_time() - start) / how.steps
    seeds = [10_000 + 1000 * seed + row for row in range(how.episodes)]
    target, rows = BODIES[body].target, len(seeds)
    timed = Timed(Window(decider, target, rows))
    windows = play(body, timed, seeds)
    carried = Timed(None if decider.clones else Carried(decider, target, rows))
    states = None if decider.clones else play(body, carried, seeds)
    return Decided(
        returns=windows.returns,
        lengths=windows.lengths,
        carried=states.returns if states else [],
        carried_lengths=states.lengths if states else [],
        curve=curve,
        parameters=sum(p.numel() for p in decider.parameters()),
        learning=learning,
        acting=timed.micro,
        carrying=carried.micro,
    )


class Timed:
    """A policy, and the time of the processor that its actions take."""

    def __init__(self, policy: Policy | None) -> None:
        self.policy, self.calls, self.seconds = policy, 0, 0.0

    def __call__(self, observations: Array, rewards: Array) -> Array:
        """Act."""
        assert self.policy is not None
        start = time.process_time()
        action = self.policy(observations, rewards)
        self.seconds += time.process_time() - start
        self.calls += 1
        return action

    @property
    def micro(self) -> float:
        """Microseconds a call."""
        return 1e6 * self.seconds / self.calls if self.calls else 0.0
