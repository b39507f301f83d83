"""Q-learning from a replay of sequences in one file, with a memory of any mixer, after R2D2.

    python examples/replay_memory.py --mixer mingru

The task: each step shows one of four symbols, and the agent names the first of the episode.
Pieces of the past are replayed from the state that acting stored, and the steps before them are a
burn-in: they make the state, and have no loss. See Kapturowski et al., "Recurrent experience replay
in distributed reinforcement learning", ICLR 2019; here without priorities, and with one actor. It
prints the share of right answers, and how far states and values of each way to begin are from those
of today's weights.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

import linrnn
from linrnn.state import leaves, map_state

SYMBOLS, ROWS, EPISODE = 4, 16, 20  # an episode has 12 to 20 steps
PIECE, BURN_IN, CAPACITY = 16, 8, 1024  # steps of a piece with a loss, before it, and of the replay
EVERY = 4  # steps between states that are stored
GAMMA, RATE, BATCH, EXPLORE, FRESHEN = 0.5, 2e-3, 32, 0.1, 50
WAYS = ("zeros", "stored", "burn-in")


class Recall:
    """Rows of episodes side by side: name the first symbol, which is shown once."""

    def __init__(self, rows: int, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.left = torch.zeros(rows, dtype=torch.long)
        self.first = torch.zeros(rows, dtype=torch.long)
        self.start = torch.ones(rows, dtype=torch.bool)

    def look(self) -> Tensor:
        """Observations (rows, symbols + 1): a symbol, and whether an episode begins."""
        symbol = torch.randint(SYMBOLS, self.left.shape, generator=self.random)
        length = torch.randint(12, EPISODE + 1, self.left.shape, generator=self.random)
        self.first = torch.where(self.start, symbol, self.first)
        self.left = torch.where(self.start, length, self.left)
        return torch.cat([torch.eye(SYMBOLS)[symbol], self.start[:, None].float()], 1)

    def step(self, action: Tensor) -> Tensor:
        """Rewards; ``start`` tells then where the next observation is of another episode."""
        self.left -= 1
        self.start = self.left == 0
        return (action == self.first).float()


class Q(nn.Module):
    """``(x, state, start) -> (values, state)`` of (batch, time, ...) at once."""

    def __init__(self, mixer: str, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SYMBOLS + 1, width), nn.Tanh())
        self.memory = linrnn.RNN(mixer, width, width, batch_first=True)
        self.advantage, self.value = nn.Linear(width, SYMBOLS), nn.Linear(width, 1)

    def forward(self, x: Tensor, state, start: Tensor):
        """Read whole pieces, or steps: a start inside begins anew."""
        y, state = self.memory(self.encoder(x), state, reset=start)
        advantage = self.advantage(y)
        return self.value(y) + advantage - advantage.mean(-1, keepdim=True), state


class Piece(NamedTuple):
    """Steps of some rows, (rows, time, ...), and the states that acting had before the first."""

    x: Tensor
    start: Tensor
    action: Tensor
    reward: Tensor
    state: object


class Replay:
    """The last steps of all rows as a ring, with the state before every few steps.

    Args:
        state: of all rows, whose leaves have the rows on axis 1; its numbers do not matter.
        capacity: steps of a row, a multiple of ``every``.
        every: steps from a stored state to the next.
    """

    def __init__(self, state, capacity: int = CAPACITY, every: int = EVERY) -> None:
        self.capacity, self.every, self.count = capacity, every, 0
        self.x = torch.zeros(ROWS, capacity, SYMBOLS + 1)
        self.start = torch.zeros(ROWS, capacity, dtype=torch.bool)
        self.action = torch.zeros(ROWS, capacity, dtype=torch.long)
        self.reward = torch.zeros(ROWS, capacity)
        self.states = map_state(lambda h: h.new_zeros(capacity // every, *h.shape), state)

    def add(self, x: Tensor, start: Tensor, action: Tensor, reward: Tensor, state) -> None:
        """Append a step of every row; ``state`` is that before the step."""
        t = self.count % self.capacity
        self.x[:, t], self.start[:, t] = x, start
        self.action[:, t], self.reward[:, t] = action, reward
        if t % self.every == 0:
            for ring, part in zip(leaves(self.states), leaves(state), strict=True):
                ring[t // self.every] = part
        self.count += 1

    def draw(self, count: int, before: int, after: int) -> tuple[Tensor, Tensor]:
        """Rows and steps with a stored state, evenly, with some steps before and after them."""
        oldest = max(0, self.count - self.capacity)
        low, high = -(-(oldest + before) // self.every), (self.count - after) // self.every
        return torch.randint(ROWS, (count,)), torch.randint(low, high + 1, (count,)) * self.every

    def read(self, rows: Tensor, first: Tensor, time: int) -> Piece:
        """The steps of rows from ``first`` on, each of which has a stored state."""
        where = rows[:, None], (first[:, None] + torch.arange(time)) % self.capacity
        slots = first % self.capacity // self.every
        state = map_state(lambda h: h[slots, :, rows].movedim(0, 1), self.states)
        columns = (z[where] for z in (self.x, self.start, self.action, self.reward))
        return Piece(*columns, state)


@torch.no_grad()
def state_before(q: Q, replay: Replay, rows: Tensor, first: Tensor, way: str):
    """State of rows before the steps ``first``, from which a piece is read.

    Args:
        q: today's weights.
        replay: of steps that older weights made.
        rows, first: as those of `Replay.draw`.
        way: "zeros"; "stored", as acting had it; "burn-in", which reads ``BURN_IN`` steps from the
            stored state before them; or "true", which reads from zeros the steps of the longest
            episode, of which the last start clears whatever was before.
    """
    if way == "zeros":
        return None
    if way == "stored":
        return replay.read(rows, first, 0).state
    if way not in {"burn-in", "true"}:
        raise ValueError(f"state_before: way must be zeros, stored, burn-in or true, got {way!r}.")
    time = BURN_IN if way == "burn-in" else EPISODE
    past = replay.read(rows, first - time, time)
    return q(past.x, past.state if way == "burn-in" else None, past.start)[1]


@torch.no_grad()
def distances(q: Q, replay: Replay, way: str, count: int = 256) -> tuple[float, float]:
    """How far from the truth a way to begin is: in states, and in values right after.

    Both are norms of the difference: that of states over the norm of the true ones, that of values
    over the largest of the true ones, as in section 3 of the paper.
    """
    rows, first = replay.draw(count, EPISODE, 1)
    true, state = (state_before(q, replay, rows, first, name) for name in ("true", way))
    state = map_state(torch.zeros_like, true) if state is None else state
    pairs = list(zip(leaves(state), leaves(true), strict=True))
    apart, size = (
        sum(float(z.abs().square().sum()) for z in parts) ** 0.5
        for parts in ([h - g for h, g in pairs], [g for _, g in pairs])
    )
    step = replay.read(rows, first, 1)
    values, expected = (q(step.x, h, step.start)[0][:, 0] for h in (state, true))
    discrepancy = (values - expected).norm(dim=-1) / expected.abs().amax(-1)
    return apart / size, float(discrepancy.mean())


def loss_of(q: Q, target: Q, replay: Replay, way: str) -> Tensor:
    """The loss of pieces by double Q-learning, both networks from states of their own weights."""
    rows, first = replay.draw(BATCH, BURN_IN, PIECE)
    piece = replay.read(rows, first, PIECE)
    values, _ = q(piece.x, state_before(q, replay, rows, first, way), piece.start)
    with torch.no_grad():
        state = state_before(target, replay, rows, first, way)
        later, _ = target(piece.x, state, piece.start)
        best = values.argmax(-1, keepdim=True)
        on = ~piece.start[:, 1:]  # where the next step is of the same episode
        goal = piece.reward[:, :-1] + GAMMA * on * later.gather(-1, best)[:, 1:, 0]
    taken = values.gather(-1, piece.action[..., None])[:, :-1, 0]
    return smooth_l1_loss(taken, goal)


class Actor:
    """Plays in all rows and fills the replay."""

    def __init__(self, q: Q, seed: int) -> None:
        self.q, self.world = q, Recall(ROWS, seed)
        self.state = q(torch.zeros(ROWS, 1, SYMBOLS + 1), None, torch.ones(ROWS, 1) > 0)[1]
        self.state = map_state(lambda h: torch.zeros_like(h), self.state)
        self.replay = Replay(self.state)

    @torch.no_grad()
    def step(self, explore: float = EXPLORE) -> float:
        """A step of every row; the share of right answers."""
        x, start = self.world.look(), self.world.start
        values, state = self.q(x[:, None], self.state, start[:, None])
        drawn = torch.randint(SYMBOLS, (ROWS,))
        action = torch.where(torch.rand(ROWS) < explore, drawn, values[:, 0].argmax(-1))
        reward = self.world.step(action)
        self.replay.add(x, start, action, reward, self.state)
        self.state = state
        return float(reward.mean())


def train(mixer: str, steps: int, seed: int, way: str, say: Callable[[str], None] = print) -> Actor:
    """Train an agent for some steps of all rows together; a player of what it learned."""
    torch.manual_seed(seed)
    q, target = Q(mixer), Q(mixer)
    target.load_state_dict(q.state_dict())
    optimizer, actor = torch.optim.Adam(q.parameters(), RATE), Actor(q, seed)
    shares: list[float] = []
    for t in range(1, steps // ROWS + 1):
        shares.append(actor.step())
        if t < 4 * EPISODE or t % 2:
            continue
        loss = loss_of(q, target, actor.replay, way)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(q.parameters(), 1.0)
        optimizer.step()
        if t % FRESHEN == 0:
            target.load_state_dict(q.state_dict())
        if t % 400 == 0:
            say(f"{t * ROWS:7,} steps: {sum(shares[-200:]) / 200:.3f} right")
    return actor


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mixer", default="mingru", help="any of `linrnn list mixers`")
    parser.add_argument("--steps", type=int, default=40_000, help="of all rows together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--begin", default="burn-in", choices=WAYS, help="state before a piece")
    args = parser.parse_args()
    actor = train(args.mixer, args.steps, args.seed, args.begin)
    for way in WAYS:
        states, values = distances(actor.q, actor.replay, way)
        print(f"{way:8} states {states:.4f} of their norm away, values {values:.4f}")
    share = sum(actor.step(explore=0.0) for _ in range(10 * EPISODE)) / (10 * EPISODE)
    print(f"{args.mixer}, {args.begin}, seed {args.seed}: {share:.3f} of the answers are right")
