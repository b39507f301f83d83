"""Imitation of demonstrations in BabyAI: a mission and views to actions, by any memory."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from linrnn.reproductions._runs.agent import memory
from linrnn.reproductions._runs.grid_worlds import (
    ACTIONS,
    VIEW,
    Array,
    Demonstration,
    Policy,
    play,
)
from linrnn.state import map_state
from linrnn.typing import State

TORCH_GRU = "nn.GRU"
"""PyTorch's own layer, beside the names of mixers and `NO_MEMORY`."""
_CODES = (16, 8, 8)
"""Values of kind, colour and state of a cell, at most."""


@dataclass(frozen=True, kw_only=True)
class Imitating:
    """How it is learned and tested, the same for every memory."""

    demonstrations: int
    epochs: int
    batch: int = 16
    """Episodes of a batch."""
    rate: float = 1e-3
    """Learning rate of Adam; it falls to zero along half a cosine."""
    norm: float = 1.0
    """Norm that gradients are clipped to."""
    width: int = 128
    channels: int = 32
    """Channels of the convolutions."""
    episodes: int = 256
    """Episodes that are played at the end, for each way to act."""


class Vocabulary:
    """Numbers of words; 0 pads, and 1 is a word that no mission had."""

    def __init__(self, missions: Sequence[str]) -> None:
        words = sorted({word for mission in missions for word in _words(mission)})
        self.numbers = {word: number for number, word in enumerate(words, 2)}

    def __len__(self) -> int:
        return len(self.numbers) + 2

    def read(self, missions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Missions as numbers (rows, words), padded, and how many words each has."""
        rows = [
            torch.tensor([self.numbers.get(word, 1) for word in _words(mission)])
            for mission in missions
        ]
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def _words(mission: str) -> list[str]:
    return mission.replace(",", " , ").split()


class _TorchGRU(nn.Module):
    """PyTorch's GRU by the call of a memory; its rows are whole episodes from their beginning."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor, state: Tensor | None, reset: Tensor) -> tuple[Tensor, Tensor]:
        y, state = self.layer(x, state)
        return y, state


class Imitator(nn.Module):
    """Logits of actions from a mission and the views so far.

    Every cell is the sum of three embeddings. Two convolutions follow, whose channels are scaled
    and shifted by what a GRU read of the mission (FiLM; Perez et al. 2018, arXiv:1709.07871).
    Then comes the memory. It is the agent of BabyAI 1.1 (Hui et al. 2020, arXiv:2007.12770), but
    smaller, and without residual connections.

    Args:
        words: of the vocabulary.
        mixer: a name of a mixer, `TORCH_GRU` or `NO_MEMORY`.
        how: sizes.
        options: of the mixer.
    """

    def __init__(
        self, words: int, mixer: str, how: Imitating, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        channels, width = how.channels, how.width
        self.words = nn.Embedding(words, 32, padding_idx=0)
        self.reader = nn.GRU(32, width, batch_first=True)
        self.cells = nn.Embedding(sum(_CODES), channels)
        self.offsets: Tensor
        self.register_buffer("offsets", torch.tensor((0, _CODES[0], sum(_CODES[:2]))))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3) for _ in range(2))
        self.films = nn.ModuleList(nn.Linear(width, 2 * channels) for _ in range(2))
        side = VIEW[0] - 4  # each convolution takes two
        self.join = nn.Linear(side * side * channels + width, width)
        from_catalogue = mixer != TORCH_GRU
        self.memory = memory(mixer, width, options or {}) if from_catalogue else _TorchGRU(width)
        self.head = nn.Linear(width, ACTIONS)

    def mission(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        """Read missions (rows, words), to (rows, width)."""
        read, _ = self.reader(self.words(numbers))
        last: Tensor = read[torch.arange(len(read)), lengths - 1]
        return last

    def look(self, views: Tensor, mission: Tensor) -> Tensor:
        """Read views (steps, 7, 7, 3), each with its mission (steps, width), to (steps, width)."""
        x = self.cells(views.long() + self.offsets).sum(-2).movedim(-1, 1)
        for convolution, film in zip(self.convolutions, self.films, strict=True):
            scale, shift = film(mission)[..., None, None].chunk(2, 1)
            x = (convolution(x) * (1 + scale) + shift).relu()
        joined: Tensor = self.join(torch.cat([x.flatten(1), mission], 1)).relu()
        return joined

    def remember(self, x: Tensor, state: State | None) -> tuple[Tensor, State | None]:
        """Read (rows, time, width) from a state; logits of actions, and the state."""
        reset = torch.zeros(x.shape[:2], dtype=torch.bool)
        y, state = self.memory(x, state, reset=reset)
        return self.head(y), state

    def forward(self, batch: Sequence[Demonstration], vocabulary: Vocabulary) -> Tensor:
        """Logits of every step of some episodes, one episode after the other: (steps, actions)."""
        lengths = torch.tensor([len(one.actions) for one in batch])
        missions = self.mission(*vocabulary.read([one.mission for one in batch]))
        views = torch.from_numpy(np.concatenate([one.views for one in batch]))
        x = self.look(views, missions.repeat_interleave(lengths, 0))
        logits, _ = self.remember(pad_sequence(x.split(lengths.tolist()), batch_first=True), None)
        return logits[torch.arange(logits.shape[1]) < lengths[:, None]]


def learn(
    demonstrations: Sequence[Demonstration],
    mixer: str,
    how: Imitating,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> tuple[Imitator, Vocabulary, list[tuple[int, float]]]:
    """Train an agent; with it the vocabulary, and epochs with their mean loss a step."""
    torch.manual_seed(seed)
    vocabulary = Vocabulary([one.mission for one in demonstrations])
    agent = Imitator(len(vocabulary), mixer, how, options)
    optimizer = torch.optim.Adam(agent.parameters(), how.rate)
    batches = -(-len(demonstrations) // how.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.epochs * batches)
    curve = []
    for epoch in range(1, how.epochs + 1):
        total = steps = 0.0
        for rows in torch.randperm(len(demonstrations)).split(how.batch):
            batch = [demonstrations[row] for row in rows.tolist()]
            actions = torch.from_numpy(np.concatenate([one.actions for one in batch])).long()
            loss = cross_entropy(agent(batch, vocabulary), actions)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), how.norm)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(actions)
            steps += len(actions)
        curve.append((epoch, total / steps))
    return agent, vocabulary, curve


class Player:
    """Acts in several episodes, each with a state that goes from step to step.

    Args:
        agent, vocabulary: those that were trained.
        missions: of the episodes.
        greedy: whether the likeliest action is taken, and none is drawn.
    """

    def __init__(
        self, agent: Imitator, vocabulary: Vocabulary, missions: Sequence[str], *, greedy: bool
    ) -> None:
        self.agent, self.greedy = agent, greedy
        with torch.no_grad():
            self.missions = agent.mission(*vocabulary.read(missions))
        self.state: State | None = None
        self.rows = list(range(len(missions)))

    @torch.no_grad()
    def __call__(self, rows: Sequence[int], views: Array) -> Array:
        """Actions of the episodes that go on; states of the others are dropped."""
        if list(rows) != self.rows and self.state is not None:
            place = {row: index for index, row in enumerate(self.rows)}
            index = torch.tensor([place[row] for row in rows])
            self.state = map_state(lambda h: h[:, index], self.state)
        self.rows = list(rows)
        x = self.agent.look(torch.from_numpy(views), self.missions[self.rows])
        logits, self.state = self.agent.remember(x[:, None], self.state)
        if self.greedy:
            actions = logits[:, 0].argmax(-1)
        else:
            actions = torch.distributions.Categorical(logits=logits[:, 0]).sample()
        numbers: Array = actions.numpy()
        return numbers


@dataclass(frozen=True, kw_only=True)
class Imitated:
    """Results of a run."""

    won: Sequence[bool]
    """Whether each episode was won when actions were drawn."""
    lengths: Sequence[int]
    greedy: Sequence[bool]
    """Whether each was won with the likeliest actions."""
    greedy_lengths: Sequence[int]
    curve: Sequence[tuple[int, float]]
    """Epochs, and the mean loss a step."""
    parameters: int
    learning: float
    """Microseconds of the processor a step of a demonstration, each time it is read."""


def imitate(
    level: str,
    demonstrations: Sequence[Demonstration],
    mixer: str,
    how: Imitating,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> Imitated:
    """Learn from demonstrations, and play fresh episodes of the level."""
    start = time.process_time()
    agent, vocabulary, curve = learn(demonstrations, mixer, how, seed, options)
    read = how.epochs * sum(len(one.actions) for one in demonstrations)
    learning = 1e6 * (time.process_time() - start) / read
    seeds = range(_FRESH + 10_000 * seed, _FRESH + 10_000 * seed + how.episodes)

    def begin(greedy: bool) -> Any:
        def policy(missions: Sequence[str]) -> Policy:
            return Player(agent, vocabulary, missions, greedy=greedy)

        return policy

    sampled, likeliest = (play(level, begin(greedy), seeds) for greedy in (False, True))
    return Imitated(
        won=sampled.won,
        lengths=sampled.lengths,
        greedy=likeliest.won,
        greedy_lengths=likeliest.lengths,
        curve=curve,
        parameters=sum(p.numel() for p in agent.parameters()),
        learning=learning,
    )


_FRESH = 1_000_000_000
"""Seeds of episodes that are played, beyond those of all demonstrations."""
