"""The replay of `examples/replay_memory.py`: states against a loop over all steps."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from linrnn.state import leaves, map_state

SCRIPT = Path(__file__).parents[2] / "examples" / "replay_memory.py"
MIXERS = ["gru", "mingru", "lru", "gated_delta_net"]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("replay_memory", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its NamedTuple looks for annotations
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class Lived:
    """Steps of an actor that never learns, with all that it saw."""

    def __init__(self, example, mixer, steps, capacity):
        torch.manual_seed(0)
        self.q = example.Q(mixer, 16)
        self.actor = example.Actor(self.q, 0)
        self.actor.replay = example.Replay(self.actor.state, capacity)
        self.seen = []
        for _ in range(steps):
            self.actor.step()
            t = (self.actor.replay.count - 1) % capacity
            self.seen.append(
                (self.actor.replay.x[:, t].clone(), self.actor.replay.start[:, t].clone())
            )

    def looped(self, rows, first):
        """States of rows before their steps, by a loop over all steps that begins episodes anew."""
        parts = []
        for row, end in zip(rows.tolist(), first.tolist(), strict=True):
            state = None
            for x, start in self.seen[:end]:
                if start[row]:
                    state = None
                _, state = self.q(x[row, None, None], state, torch.zeros(1, 1) > 0)
            parts.append(state)
        return [torch.cat(part, 1) for part in zip(*map(leaves, parts), strict=True)]


def close(state, expected):
    for part, other in zip(leaves(state), expected, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("capacity", [128, 64])  # the second has been written over
def test_with_the_same_weights_every_state_is_that_of_a_loop(example, mixer, capacity):
    lived = Lived(example, mixer, 100, capacity)
    rows, first = lived.actor.replay.draw(12, example.EPISODE, 1)
    assert first.min() >= max(0, 100 - capacity) + example.EPISODE
    with torch.no_grad():
        expected = lived.looped(rows, first)
    for way in ("stored", "burn-in", "true"):
        close(example.state_before(lived.q, lived.actor.replay, rows, first, way), expected)
    assert example.state_before(lived.q, lived.actor.replay, rows, first, "zeros") is None


@pytest.mark.parametrize("mixer", MIXERS)
def test_with_new_weights_burn_in_is_nearer_to_the_loop_than_what_was_stored(example, mixer):
    lived = Lived(example, mixer, 160, 256)
    with torch.no_grad():
        for parameter in lived.q.parameters():
            parameter += 0.05 * parameter.std(correction=0) * torch.randn_like(parameter)
    rows, first = lived.actor.replay.draw(64, example.EPISODE, 1)
    with torch.no_grad():
        expected = lived.looped(rows, first)
    close(example.state_before(lived.q, lived.actor.replay, rows, first, "true"), expected)
    away = {}
    for way in ("stored", "burn-in"):
        state = example.state_before(lived.q, lived.actor.replay, rows, first, way)
        pairs = zip(leaves(state), expected, strict=True)
        away[way] = sum(float((part - other).norm()) for part, other in pairs)
    assert 0 < away["burn-in"] < away["stored"]
    torch.manual_seed(1)
    measured = {way: example.distances(lived.q, lived.actor.replay, way) for way in example.WAYS}
    assert measured["zeros"][0] == 1
    assert measured["burn-in"][0] < measured["stored"][0] < 1
    assert 0 < measured["burn-in"][1] < measured["zeros"][1]


def test_pieces_are_steps_in_their_order(example):
    state = torch.zeros(1, example.ROWS, 3)
    replay = example.Replay(state, capacity=32, every=4)
    for t in range(70):
        x = torch.full((example.ROWS, example.SYMBOLS + 1), float(t))
        begins = torch.full((example.ROWS,), t % 5 == 0)
        replay.add(x, begins, torch.arange(example.ROWS), x[:, 0], torch.full_like(state, t))
    rows, first = replay.draw(200, before=8, after=12)
    assert (int(first.min()), int(first.max())) == (48, 56)  # 38 is the oldest, 69 the newest
    piece = replay.read(rows, first, 12)
    times = first[:, None] + torch.arange(12)
    assert torch.equal(piece.x[..., 0], times.float())
    assert torch.equal(piece.start, times % 5 == 0)
    assert torch.equal(piece.action, rows[:, None].expand(-1, 12))
    assert torch.equal(piece.state[0, :, 0], first.float())


def test_no_gradient_reaches_a_burn_in(example):
    lived = Lived(example, "gru", 100, 128)
    target = example.Q("gru", 16)
    torch.manual_seed(2)
    loss = example.loss_of(lived.q, target, lived.actor.replay, "burn-in")
    loss.backward()
    learned = [p.grad.abs().sum() > 0 for p in lived.q.parameters()]
    assert all(learned)
    assert all(p.grad is None for p in target.parameters())
    rows, first = lived.actor.replay.draw(3, example.EPISODE, 1)
    state = example.state_before(lived.q, lived.actor.replay, rows, first, "burn-in")
    map_state(lambda h: pytest.fail("a gradient") if h.requires_grad else h, state)


def test_a_wrong_way_is_refused(example):
    lived = Lived(example, "gru", 60, 64)
    rows, first = lived.actor.replay.draw(1, example.EPISODE, 1)
    with pytest.raises(ValueError, match="zeros, stored, burn-in or true, got 'warm'"):
        example.state_before(lived.q, lived.actor.replay, rows, first, "warm")


@pytest.mark.slow
def test_the_example_learns():
    command = [sys.executable, SCRIPT, "--mixer", "mingru", "--steps", "25000"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    share = re.search(
        r"^mingru, burn-in, seed 0: ([\d.]+) of the answers are right", run.stdout, re.M
    )
    assert float(share[1]) > 0.95
