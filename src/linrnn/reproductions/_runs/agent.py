"""An actor and a critic that share a memory, read step by step or whole rollouts at once."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad

from linrnn.rnn import RNN
from linrnn.state import leaves
from linrnn.typing import State

NO_MEMORY, FRAMES = "none", "frames"
"""Names beside those of mixers: nothing is remembered, or a few observations are."""
STACKED = 4
"""Observations that `Frames` reads."""


class Frames(nn.Module):
    """The last observations beside one another, instead of a recurrent layer."""

    def __init__(self, width: int, count: int = STACKED) -> None:
        super().__init__()
        self.width, self.before = width, count - 1
        self.mix = nn.Linear(count * width, width)

    def forward(self, x: Tensor, state: Tensor | None, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Read (batch, time, width); the state is (1, batch, numbers)."""
        if state is None:
            state = x.new_zeros(1, len(x), self.before * self.width)
        past = torch.cat([state[0].unflatten(1, (self.before, self.width)), x], 1)
        episode = pad(reset.to(x), (self.before, 0)).cumsum(1)  # (batch, before + time)
        now = episode[:, self.before :]
        frames = []
        for first in range(self.before + 1):
            at = slice(first, first + x.shape[1])
            frames.append(past[:, at] * (episode[:, at] == now)[..., None])
        read = torch.cat(frames, -1)
        return leaky_relu(self.mix(read)), read[None, :, -1, self.width :]


class Nothing(nn.Module):
    """A map of the present, of the same depth as a layer that remembers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x: Tensor, state: None, reset: Tensor) -> tuple[Tensor, None]:
        """Read each step by itself."""
        return leaky_relu(self.map(x)), None


class Screen(nn.Module):
    """A map of pixels, and of the numbers beside them, by three convolutions.

    Args:
        size: rows and columns of the pixels, which come first and row by row; 18 at least.
        others: numbers after them.
        width: channels that come out.
    """

    def __init__(self, size: tuple[int, int], numbers: int, width: int) -> None:
        super().__init__()
        self.size, self.pixels = size, size[0] * size[1]
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(1, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, 2), nn.ReLU(), nn.Flatten()),
        )
        with torch.no_grad():
            features = self.convolutions(torch.zeros(1, 1, *size)).numel()
        self.join = nn.Linear(features + numbers, width)

    def forward(self, x: Tensor) -> Tensor:
        """Read (batch, time, pixels + others), to (batch, time, width)."""
        pixels, numbers = x.split([self.pixels, x.shape[-1] - self.pixels], -1)
        features = self.convolutions(pixels.reshape(-1, 1, *self.size)).unflatten(0, x.shape[:2])
        joined: Tensor = self.join(torch.cat([features, numbers], -1))
        return joined


def memory(name: str, width: int, options: Mapping[str, Any]) -> nn.Module:
    """A layer by the name of a mixer, or one of the two controls."""
    if name == NO_MEMORY:
        return Nothing(width)
    if name == FRAMES:
        return Frames(width)
    return RNN(name, width, width, batch_first=True, mixer_options=options)


class Agent(nn.Module):
    """Observations to numbers of a policy and values.

    Args:
        inputs: channels of an observation.
        sizes: of each number of an action how many values it has, 0 for a real one.
        mixer: a name, or `NO_MEMORY`, or `FRAMES`.
        width: of every layer.
        options: of the mixer.
        screen: rows and columns, if an observation begins with pixels; they go through `Screen`.
    """

    def __init__(
        self,
        inputs: int,
        sizes: Sequence[int],
        mixer: str,
        width: int = 128,
        options: Mapping[str, Any] | None = None,
        screen: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.encoder: nn.Module = nn.Linear(inputs, width)
        if screen is not None:
            self.encoder = Screen(screen, inputs - screen[0] * screen[1], width)
        self.memory = memory(mixer, width, options or {})
        self.actor = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, sum(map(_n, sizes)))])
        self.critic = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, 1)])
        self.log_std = nn.Parameter(torch.zeros(sizes.count(0))) if 0 in self.sizes else None
        nn.init.orthogonal_(cast(nn.Linear, self.actor[1]).weight, 0.01)

    def forward(
        self, x: Tensor, state: State | None, start: Tensor
    ) -> tuple[Tensor, Tensor, State | None]:
        """Read steps or whole rollouts (batch, time, inputs), a new episode where it starts.

        Returns:
            Parameters of the policy, values, and the state, whose rows lie on axis 1.
        """
        y, state = self.memory(leaky_relu(self.encoder(x)), state, reset=start)
        both = self._heads(y)
        return both[..., :-1], both[..., -1], state

    @property
    def floats(self) -> int:
        """Numbers of the state of a row."""
        if isinstance(self.memory, RNN):
            state = cast(Any, self.memory.cells[0]).mixer.init_state(1)
            return sum(h.numel() * (1 + h.is_complex()) for h in leaves(state))
        return self.memory.before * self.memory.width if isinstance(self.memory, Frames) else 0

    def _heads(self, y: Tensor) -> Tensor:
        """Parameters of the policy and the value, beside one another."""
        policy, value = (
            cast(nn.Linear, head[1])(leaky_relu(cast(nn.Linear, head[0])(y)))
            for head in (self.actor, self.critic)
        )
        return torch.cat([policy, value], -1)

    def sample(self, policy: Tensor) -> Tensor:
        """Actions (batch, numbers) of parameters of the policy."""
        actions = []
        real = iter(()) if self.log_std is None else iter(self.log_std.exp())
        for part, size in zip(policy.split([*map(_n, self.sizes)], -1), self.sizes, strict=True):
            if size:
                # the first of exponential clocks to ring is drawn with its probability
                ring = part - torch.empty_like(part).exponential_().log()
                actions.append(ring.argmax(-1, keepdim=True).to(part.dtype))
            else:
                actions.append(part + next(real) * torch.randn_like(part))
        return torch.cat(actions, -1)

    def log_prob(self, policy: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions (..., numbers), and the entropy of the policy."""
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
