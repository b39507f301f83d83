"""Inner learning: golden numbers, and what a perceptron has in common with any function."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linrnn.ops.attention import positions
from linrnn.ops.inner import RULES, inner_scan

F64 = torch.float64


class AnyFunction:
    """A rule without its derivative."""

    def __init__(self, rule):
        self.loss, self.read = rule.loss, rule.read


@pytest.fixture(params=["matrix form", "any function"])
def named(request, monkeypatch):
    """The name of a rule as it is, and of one that hides its derivative."""
    if request.param == "matrix form":
        return lambda name: name
    for name in ("regression", "residual_regression"):
        monkeypatch.setitem(RULES, f"any {name}", AnyFunction(RULES[name]))
    return lambda name: f"any {name}"


def rows(*values):
    return torch.tensor(values, dtype=F64).view(1, 4, 1, -1)


Q = rows((1, 0), (0, 1), (1, 1), (1, -1))
K = rows((1, 0), (0.6, 0.8), (0, 1), (0.8, -0.6))
V = rows((1, 2), (3, -1), (-2, 1), (1, 1))
PLACE = torch.arange(4)[None]


def test_a_matrix_with_momentum_gives_the_golden_numbers_of_titans(named):
    nothing = torch.zeros(1, 1, 2, 2, dtype=F64)
    rate, momentum, decay = (
        torch.tensor(z, dtype=F64).view(1, 4, 1)
        for z in ((0.1, 0.2, 0.1, 0.3), (0.9, 0.8, 0.5, 0.6), (0.1, 0.05, 0.2, 0.1))
    )
    state = [nothing], [], [nothing]
    options = {"momentum": momentum, "decay": decay}
    o, *_ = inner_scan(
        named("regression"), "gelu", Q, K, V, rate, [nothing[0]], state, PLACE, 1, **options
    )
    golden = rows((0.2, 0.4), (0.9216, -0.3968), (1.872320, 0.096640), (1.213375, 0.967741))
    torch.testing.assert_close(o, golden, rtol=0, atol=1e-6)


W = rows((0.1, 0.2, -0.1, 0.3), (-0.3, 0.4, 0.2, -0.2), (0.2, -0.1, 0.3, 0.1), (0, 0.1, -0.2, 0.4))
COUNT = torch.arange(64, dtype=F64)
LINEAR = [W.view(1, 4, 4), torch.tensor([[0.05, -0.05, 0.1, 0]], dtype=F64)]
MLP = [0.3 * COUNT.sin().view(1, 4, 16), torch.zeros(1, 16, dtype=F64)]
MLP += [0.3 * COUNT.cos().view(1, 16, 4), torch.zeros(1, 4, dtype=F64)]


@pytest.mark.parametrize(
    ("weights", "first", "last"),
    [
        (
            LINEAR,
            (-0.080411, 1.626408, -0.311658, 0.465660),
            (0.039835, 0.197007, -1.417645, 1.380803),
        ),
        (
            MLP,
            (0.272367, 1.514117, 0.365819, -0.452303),
            (2.287937, -2.150208, -1.179060, 1.241331),
        ),
    ],
    ids=["linear", "mlp"],
)
def test_residual_regression_gives_the_golden_numbers_of_ttt(named, weights, first, last):
    q, k, v = (torch.cat([z, z.flip(-1) / 2 + 0.1], -1) for z in (Q, K, V))
    nothing = [torch.zeros_like(w)[None] for w in weights]
    options = {
        "gain": torch.tensor([0.25, 0.125], dtype=F64),
        "constants": [torch.ones(1, 4, dtype=F64), torch.zeros(1, 4, dtype=F64)],
    }
    rate, state = torch.ones(1, 4, 1, dtype=F64), (nothing, nothing, [])
    rule = named("residual_regression")
    o, *_ = inner_scan(rule, "gelu_tanh", q, k, v, rate, weights, state, PLACE, 2, **options)
    expected = torch.tensor([first, last], dtype=F64)
    torch.testing.assert_close(o[0, [0, 3], 0], expected, rtol=0, atol=1e-6)


def drawn(time, mini_batch, hidden=5, batch=2, dtype=F64):
    """A call of a perceptron with everything: two heads of three channels."""
    heads, d = 2, 3
    sizes = [(d, hidden), (hidden,), (hidden, d), (d,)]
    weights = [torch.randn(heads, *z, dtype=dtype) / 2 for z in sizes]
    moves = [0.1 * torch.randn(batch, *w.shape, dtype=dtype) for w in weights]
    numbers = [torch.rand(batch, time, heads, dtype=dtype) / 4 for _ in range(3)]
    vectors = [torch.randn(batch, time, heads, d, dtype=dtype) for _ in range(3)]
    pending = moves if mini_batch > 1 else []
    options = {"momentum": numbers[1], "decay": numbers[2]}
    return (*vectors, numbers[0], weights, (moves, pending, moves)), options


@pytest.mark.parametrize("mini_batch", [1, 4])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_the_matrix_form_is_that_of_any_function(monkeypatch, activation, mini_batch):
    torch.manual_seed(0)
    monkeypatch.setitem(RULES, "any", AnyFunction(RULES["regression"]))
    arguments, options = drawn(23, mini_batch)
    reset = torch.rand(2, 23) < 0.15
    place = positions(torch.tensor([2, 5]), 23, reset)
    one, other = (
        inner_scan(rule, activation, *arguments, place, mini_batch, **options)
        for rule in ("regression", "any")
    )
    torch.testing.assert_close(one, other)


class Largest(TorchDispatchMode):
    """How many numbers the largest result of an operator has."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.count = max(self.count, result.numel())
        return result


def test_rows_of_a_perceptron_have_no_weights_of_their_own(monkeypatch):
    monkeypatch.setitem(RULES, "any", AnyFunction(RULES["regression"]))
    arguments, options = drawn(64, 16, hidden=64, batch=1)
    place, counts = torch.arange(64)[None], []
    for rule in ("regression", "any"):
        with torch.no_grad(), Largest() as largest:
            inner_scan(rule, "silu", *arguments, place, 16, **options)
        counts.append(largest.count)
    of_all_rows = 16 * arguments[4][0].numel()
    assert counts[0] < of_all_rows / 2
    assert counts[1] >= of_all_rows


def saved_numbers(time):
    """How many numbers a graph holds of a call, each storage once."""
    arguments, options = drawn(time, 4, hidden=32, batch=1)
    arguments[0].requires_grad_()
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        results = inner_scan(
            "regression", "silu", *arguments, torch.arange(time)[None], 4, **options
        )
    assert results[0].requires_grad
    return sum(storages.values())


def test_what_is_kept_for_gradients_grows_as_the_inputs_do():
    torch.manual_seed(0)
    short, long = saved_numbers(256), saved_numbers(1024)
    a_step = 2 * 3 * 3 + 2 * 3  # queries, keys, values and three numbers
    weights = 3 * (2 * (3 * 32 + 32 + 32 * 3 + 3))  # three kinds of moves
    assert long - short < 768 * a_step + 4 * 16 * weights  # the root of 256 mini-batches, not all
