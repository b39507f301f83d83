"""An actor and a critic that share a memory, read step by step or whole rollouts at once."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad

from linrnn.engine.replay.step import recorded_step
from linrnn.interop._agents import Layers
from linrnn.state import leaves, rebuilt
from linrnn.typing import State

NO_MEMORY, FRAMES = "none", "frames"
"""Names beside those of mixers: nothing is remembered, or a few observations are."""
STACKED = 4
"""Observations that `Frames` reads."""


class Frames(nn.Module):
    """The last observations beside one another, in the place of a recurrent layer."""

    def __init__(self, width: int, count: int = STACKED) -> None:
        super().__init__()
        self.width, self.count = width, count
        self.mix = nn.Linear(count * width, width)

    def init_state(self, batch_size: int) -> Tensor:
        """No observations."""
        return self.mix.weight.new_zeros(batch_size, (self.count - 1) * self.width)

    def forward(
        self, x: Tensor, state: Tensor, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read sequences (batch, time, width)."""
        before = self.count - 1
        past = torch.cat([state.unflatten(1, (before, self.width)), x], 1)
        start = x.new_zeros(x.shape[:2]) if reset is None else reset.to(x)
        episode = pad(start, (before, 0)).cumsum(1)  # (batch, before + time)
        now = episode[:, before:]
        frames = []
        for lag in range(before, -1, -1):
            first = before - lag
            there = episode[:, first : first + x.shape[1]] == now
            frames.append(past[:, first : first + x.shape[1]] * there[..., None])
        read = torch.cat(frames, -1)
        return leaky_relu(self.mix(read)), read[:, -1, self.width :]

    def one(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Read one step (batch, width)."""
        read = torch.cat([state, x_t], 1)
        return leaky_relu(self.mix(read)), read[:, self.width :]


class Nothing(nn.Module):
    """A map of the present, of the same depth as a layer that remembers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def init_state(self, batch_size: int) -> list[State]:
        """Nothing."""
        return []

    def forward(self, x: Tensor, state: State, reset: Any = None) -> tuple[Tensor, State]:
        """Read each step by itself."""
        return leaky_relu(self.map(x)), state

    one = forward


def memory(name: str, width: int, options: Mapping[str, Any]) -> nn.Module:
    """A layer by the name of a mixer, or one of the two controls."""
    if name == NO_MEMORY:
        return Nothing(width)
    if name == FRAMES:
        return Frames(width)
    layers = Layers(width, width, 1, mixer=name, mixer_options=options)
    layers.one = layers._step_by_operators  # type: ignore[assignment]
    return layers


class Agent(nn.Module):
    """Observations to numbers of a policy and values.

    Args:
        inputs: channels of an observation.
        sizes: of each number of an action how many values it has, 0 for a real one.
        mixer: a name, or `NO_MEMORY`, or `FRAMES`.
        width: of every layer.
        options: of the mixer.
    """

    def __init__(
        self,
        inputs: int,
        sizes: Sequence[int],
        mixer: str,
        width: int = 128,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.encoder = nn.Linear(inputs, width)
        self.memory = memory(mixer, width, options or {})
        self.actor = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, sum(map(_n, sizes)))])
        self.critic = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, 1)])
        self.log_std = nn.Parameter(torch.zeros(sizes.count(0))) if 0 in self.sizes else None
        nn.init.orthogonal_(cast(nn.Linear, self.actor[1]).weight, 0.01)

    def init_state(self, batch_size: int) -> State:
        """Before the first step."""
        return cast(State, cast(Any, self.memory).init_state(batch_size))

    def forward(self, x: Tensor, state: State, start: Tensor) -> tuple[Tensor, Tensor]:
        """Read rollouts (batch, time, inputs); parameters of the policy, and values.

        ``start`` is true where an episode begins, but the state is never that of an older one.
        """
        inside = start[:, 1:].any()
        reset = pad(start[:, 1:], (1, 0)) if inside else None
        y, _ = self.memory(leaky_relu(self.encoder(x)), state, reset=reset)
        both = self._heads(y)
        return both[..., :-1], both[..., -1]

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Read one step (batch, inputs)."""
        read = recorded_step(self, self._step, x_t, state) or self._step(x_t, state)
        return read[0][:, :-1], read[0][:, -1], read[1]

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = cast(Any, self.memory).one(leaky_relu(self.encoder(x_t)), state)
        return self._heads(y), state

    def _heads(self, y: Tensor) -> Tensor:
        """Parameters of the policy and the value, beside one another."""
        policy, value = (
            cast(nn.Linear, head[1])(leaky_relu(cast(nn.Linear, head[0])(y)))
            for head in (self.actor, self.critic)
        )
        return torch.cat([policy, value], -1)

    def sample(self, policy: Tensor) -> Tensor:
        """Actions (batch, numbers) of parameters of the policy."""
        drawn = []
        real = iter(()) if self.log_std is None else iter(self.log_std.exp())
        for part, size in zip(policy.split([*map(_n, self.sizes)], -1), self.sizes, strict=True):
            if size:
                # the first of exponential clocks to ring is drawn with its probability
                ring = part - torch.empty_like(part).exponential_().log()
                drawn.append(ring.argmax(-1, keepdim=True).to(part.dtype))
            else:
                drawn.append(part + next(real) * torch.randn_like(part))
        return torch.cat(drawn, -1)

    def log_prob(self, policy: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Of actions (..., numbers), and the entropy of the policy."""
        total = entropy = policy.new_zeros(policy.shape[:-1])
        real = iter(()) if self.log_std is None else iter(self.log_std)
        parts = policy.split([*map(_n, self.sizes)], -1)
        for part, chosen, size in zip(parts, action.unbind(-1), self.sizes, strict=True):
            if size:
                logs = part.log_softmax(-1)
                total = total + logs.gather(-1, chosen.long()[..., None])[..., 0]
                entropy = entropy - (logs.exp() * logs).sum(-1)
            else:
                log_std = next(real)
                z = (chosen - part[..., 0]) * (-log_std).exp()
                total = total - 0.5 * z.square() - log_std - _HALF_LOG_TAU
                entropy = entropy + 0.5 + _HALF_LOG_TAU + log_std
        return total, entropy


_HALF_LOG_TAU = 0.9189385332046727  # log(2 pi) / 2


def _n(size: int) -> int:
    """Parameters of the policy for a number of an action."""
    return size or 1


def begun_anew(state: State, fresh: State, start: Tensor) -> State:
    """A state with fresh rows where an episode begins."""
    if not start.any():
        return state
    parts = []
    for h, new in zip(leaves(state), leaves(fresh), strict=True):
        parts.append(torch.where(start.view(-1, *[1] * (h.ndim - 1)), new.to(h.dtype), h))
    return rebuilt(fresh, parts)
