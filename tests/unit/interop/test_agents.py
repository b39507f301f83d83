"""The memory of agents: whole rollouts with starts in them against steps, for every mixer."""

import pytest
import torch

from linrnn import mixers
from linrnn.errors import ArgumentError
from linrnn.interop._agents import Memory
from linrnn.state import leaves
from mixer_pairs import cases

ROWS, TIME, WIDTH = 3, 7, 16
GROWS = tuple(n for n in mixers.names() if "constant_memory" in mixers.load(n).declared)
CONSTANT = [name for name in mixers.names() if name not in GROWS]
QUICK = [
    ("mingru", 2),
    ("lru", 1),
    ("gru", 2),
    ("lstm", 1),
    ("hippo", 1),
    ("mlstm", 1),
    ("rwkv7", 2),
]


@pytest.fixture
def episodes():
    """Inputs of several episodes a row: one goes on at first, one ends at once."""
    x = torch.randn(ROWS, TIME, 3, dtype=torch.float64)
    start = torch.zeros(ROWS, TIME, dtype=torch.bool)
    start[0, [3, 4]] = start[1, 0] = start[2, [0, 5]] = True
    return x, start


def memory(name, **options):
    torch.manual_seed(0)
    made = Memory("test", name, 3, WIDTH, **options).double().eval()
    assert next(made.parameters()).dtype == torch.float64
    return made


def looped(made, x, state, start):
    """Row by row and step by step, a new state where an episode starts; with its history."""
    outputs = []
    for row in range(len(x)):
        tree = made.unpack(state[row : row + 1])
        for t in range(x.shape[1]):
            if start[row, t]:
                tree = made.layers.init_state(1)
            y, tree = made.layers(x[row : row + 1, t : t + 1], tree)
            outputs.append(y)
    return torch.cat(outputs, 1).reshape(len(x), x.shape[1], -1)


def begun(made):
    """States in the middle of episodes."""
    x = torch.randn(ROWS, 4, 3, dtype=torch.float64)
    with torch.no_grad():
        start = torch.zeros(ROWS, 4, dtype=torch.bool)
        return made(x, x.new_zeros(ROWS, made.numbers, dtype=torch.float32), start)[1]


@pytest.mark.parametrize(("name", "residual"), cases(CONSTANT, [(False,), (True,)], least=0))
def test_a_rollout_is_a_loop_that_begins_anew(name, residual, episodes):
    x, start = episodes
    made = memory(name, residual=residual)
    state = begun(made)
    y, _ = made(x, state, start)
    expected = looped(made, x, state, start)
    torch.testing.assert_close(y, expected, rtol=1e-8, atol=1e-8)
    parameters = [p for p in made.parameters() if p.requires_grad]
    weights = torch.randn_like(y)
    ours, theirs = (
        torch.autograd.grad(
            (z * weights).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        for z in (y, expected)
    )
    scale = max(float(g.abs().max()) for g in theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-8 * max(scale, 1))


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        pytest.param(name, layers, marks=[] if (name, layers) in QUICK else [pytest.mark.slow])
        for name in CONSTANT
        for layers in (1, 2)
    ],
)
def test_a_rollout_is_its_steps(name, layers, episodes):
    x, start = episodes
    made = memory(name, n_layers=layers)
    before = begun(made)
    with torch.no_grad():
        y, last = made(x, before, start)
        state, steps = before, []
        for t in range(TIME):
            y_t, state = made(x[:, t : t + 1], state, start[:, t : t + 1])
            steps.append(y_t)
    torch.testing.assert_close(torch.cat(steps, 1), y, rtol=1e-8, atol=1e-8)
    for one, other in zip(leaves(made.unpack(state)), leaves(made.unpack(last)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["mingru", "lru", "hippo", "swa", "gla", "rwkv7", "mingru,lru"])
def test_a_row_has_every_bit_of_the_state(name, dtype):
    if name == "swa":
        name, options = "attention", {"mixer_options": {"window": 3}}
    else:
        options = {}
    made = Memory("test", name, 3, WIDTH, 2, **options).to(dtype)
    drawn = []
    for h in leaves(made.layers.init_state(ROWS)):
        if h.is_floating_point() or h.is_complex():
            drawn.append(torch.randn_like(h))
        else:
            drawn.append(torch.randint_like(h, -(2**62), 2**62))
    like = made.layers.init_state(ROWS)
    for h, new in zip(leaves(like), drawn, strict=True):
        h.copy_(new)
    rows = made.pack(like)
    assert rows.shape == (ROWS, made.numbers)
    assert rows.dtype == torch.float32
    for back, h in zip(leaves(made.unpack(rows)), drawn, strict=True):
        assert back.dtype == h.dtype
        assert torch.equal(back, h)
    assert not made.pack(made.layers.init_state(ROWS)).any()


def test_rows_of_an_empty_batch():
    made = Memory("test", "lru", 3, WIDTH)
    y, state = made(torch.randn(0, 5, 3), torch.zeros(0, made.numbers), torch.ones(0, 5) > 0)
    assert y.shape == (0, 5, WIDTH)
    assert state.shape == (0, made.numbers)


@pytest.mark.unchecked
def test_a_state_that_grows_is_refused():
    with pytest.raises(ArgumentError, match="mixer must have a state of constant size"):
        Memory("RNNPolicy", "attention", 3, WIDTH)
