"""Every operator that hides a function from compilers, called as an operator."""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from linrnn import mixers
from linrnn.cells import cell
from linrnn.compute import op as _op
from linrnn.compute.composed import Composed, composed
from linrnn.compute.op import ALL
from linrnn.compute.precision import without_autocast
from linrnn.ops.attention import attend
from linrnn.ops.attention.segments import RULES

for _name in mixers.names():  # whose modules register operators
    mixers.load(_name)

B, T, N = 2, 5, 3


def randn(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype).mul_(0.5).requires_grad_()


def reset():
    return torch.tensor([[False, True, False, False, True], [True, False, False, True, False]])


def rates():
    return torch.rand(B, T, 2, dtype=torch.float64).mul_(0.3).requires_grad_()


def weights(rows):
    return [randn(rows, N), randn(rows, N), randn(rows), randn(rows)]


def system(dtype):
    return [randn(N, 2, dtype=dtype) for _ in range(3)] + [randn(N)]


def shared():
    a, b = (randn(1, 2, dtype=torch.complex128) for _ in range(2))
    return [a, b, randn(N, 2, dtype=torch.complex128), randn(N)]


def low_rank():
    """A stable system of modes 2 and rank 2: Lambda, P, b, c, dt, d."""
    lam = torch.complex(-randn(N, 2).detach().exp(), randn(N, 2).detach()).requires_grad_()
    P, b, c = (randn(*shape, dtype=torch.complex128) for shape in ((N, 2, 2), (N, 2), (N, 2)))
    return [lam, P, b, c, randn(N).detach().exp().requires_grad_(), randn(N)]


def transitions():
    shapes = ((B, T, N, 2), (B, T, N, 2), (B, T, N, 1, 2), (B, T, N, 1, 2))
    return [randn(*shape, dtype=torch.complex128) for shape in shapes]


def attended(kind, *heads):
    sight = torch.arange(T).expand(B, T)
    return kind, *(randn(B, T, *heads, 4) for _ in range(3)), sight, None, None


def attended_by_distance():
    """From two entries before on, three steps far."""
    q, k, v = randn(B, T, 2, 8), randn(B, 2 + T, 2, 4), randn(B, 2 + T, 2, 3)
    sight = (torch.arange(T) + torch.tensor([[2], [0]])).clamp(max=2)
    return "relative", q, k, v, sight, 3, randn(2, 3, 4)


def attended_per_channel():
    q, k, v = randn(B, T, 4), randn(B, T, 4 + 3), randn(B, T, 3)
    return "per_channel", q, k, v, torch.arange(T).expand(B, T), None, None


@cell(state="h m", constant="rate", matrix="w")
def step(h, m, x, rate, w):
    m = m + rate * torch.sin(x)
    h = torch.tanh(x + h @ w) * m
    return h + x, (h, m)


def stepped(form):
    leaves = ([randn(B, N), randn(B, N)], [randn(*SEQUENCE)], [randn(N)], [randn(N, N)])
    layout = (reset(), None, T, False, [0.0, 0.5], torch.float64, [N])
    return *leaves, *layout, step.text, form, None


class Averages:
    """Segments whose mean is added to a memory, which queries multiply with what they see."""

    independent = False

    @staticmethod
    def attend(mode, q, entries, age, memory, weights):
        seen = (age >= 0).to(q[0].dtype) @ entries[0]
        return q[0] * (seen + memory[0][:, None] * weights[0])

    @staticmethod
    def write(mode, entries, memory, weights, number):
        return [torch.tanh(memory[0] + entries[0].mean(1) * weights[0])]

    @staticmethod
    def start(mode, memory, weights):
        return [weights[0].expand_as(memory[0])]


RULES["test.averages"] = Averages


def segments(position, cut):
    """Keys and masks of two rows at that step of their sequence each, in segments of three."""
    at = torch.tensor(position)[:, None] + torch.arange(T)
    q, entries, begun = ([randn(B, n, N)] for n in (T, T, 2))
    return "test.averages", "", q, entries, begun, [randn(B, N)], [randn(N)], at, 3, cut, cut > 0


def sinking():
    """Three steps that are always seen, and one first."""
    q, k, v = (randn(B, time, 2, 4) for time in (T, 2 + T, 2 + T))
    at = torch.arange(T) + torch.tensor([[4], [1]])
    return q, k, v, randn(B, 1, 2, 4), randn(B, 1, 2, 4), at, 3


def evicting(policy, entries):
    kept = randn(B, entries, 2, 4), randn(B, entries, 2, 4)
    seen = [torch.rand(B, entries if policy == "h2o" else 0, 2, dtype=torch.float64)]
    return policy, randn(B, T, 2, 2, 4), randn(B, T, 2, 4), randn(B, T, 2, 4), *kept, *seen


SEQUENCE = (B, T, N)
CASES = {
    "recurrence": [
        (randn(*SEQUENCE), [randn(B, N)], weights(3 * N), reset(), "gru"),
        (randn(*SEQUENCE), [randn(B, N), randn(B, N)], weights(4 * N), reset(), "lstm"),
        (randn(*SEQUENCE), [randn(B, N)], weights(N), None, "tanh"),
        (randn(*SEQUENCE), [randn(B, N)], weights(N)[:2], reset(), "relu"),
    ],
    "dense_ssm_convolve": [
        (
            [randn(2, N, N), randn(2, N), randn(2, 3, N), randn(2, 3)],
            randn(B, T, 2),
            randn(B, 2, N),
        )
    ],
    "siso_scan": [
        (system(torch.complex128), randn(*SEQUENCE), randn(B, N, 2, dtype=torch.complex128), None),
        (system(torch.float64), randn(*SEQUENCE), randn(B, N, 2), reset()),
        (shared(), randn(*SEQUENCE), randn(B, N, 2, dtype=torch.complex128), None),
    ],
    "siso_convolve": [
        (shared(), randn(*SEQUENCE), randn(B, N, 2, dtype=torch.complex128)),
        (system(torch.float64), randn(*SEQUENCE), randn(B, N, 2)),
    ],
    "dplr_scan": [
        (low_rank(), randn(*SEQUENCE), randn(B, N, 2, dtype=torch.complex128), None),
        (low_rank(), randn(*SEQUENCE), randn(B, N, 2, dtype=torch.complex128), reset()),
    ],
    "dplr_convolve": [(low_rank(), randn(*SEQUENCE), randn(B, N, 2, dtype=torch.complex128))],
    "dplr_states": [
        (transitions(), randn(*SEQUENCE), randn(B, N, 2, dtype=torch.complex128), reset())
    ],
    "cell_scan": [stepped("loop"), stepped("newton")],
    "attend": [
        attended("softmax", 2),
        attended("relu_squared"),
        attended_per_channel(),
        attended_by_distance(),
    ],
    "attend_sinks": [sinking()],
    "carry_keys": [(randn(B, T, 2, 4), randn(B, T, 2, 4))],
    "attend_evicting": [
        (*evicting(policy, 3), torch.arange(T) + torch.tensor([[6], [1]]))
        for policy in ("h2o", "tova")
    ],
    "segments": [segments([4, 4], -1), segments([0, 5], 1)],
    "attentive_recurrence": [
        (
            *("tanh", randn(B, 2 + T, 2, 4), randn(B, 2 + T, 2, 4)),
            *(torch.arange(T) + torch.tensor([[2], [0]]), [randn(B, N)], randn(8, N)),
            [randn(N, 8), randn(N, N), randn(N), randn(N)],
        )
    ],
    "fed_back_delta": [
        (randn(B, T, 2, 10), randn(2, 3, 10), randn(B, 2, 3, 3), randn(B, 2, 3), reset()),
        (randn(B, T, 2, 7), randn(2, 2, 7), randn(B, 2, 2, 2), randn(B, 2, 2), None),
    ],
    "asked_by_itself": [
        (*(randn(B, T, 2, n) for n in (3, 3, 3, 1)), randn(B, 2, 3, 3), randn(B, 2, 3), reset())
    ],
    "momentum_delta_scan": [
        (
            *(randn(B, T, 2, 3), randn(B, T, 2, 3), randn(B, T, 2, 4), randn(B, T, 2, 3)),
            *(randn(B, T, 2), randn(B, T, 2), randn(B, T, 2)),
            *(randn(B, 2, 3, 4), randn(B, 2, 3, 4), mask, None),
        )
        for mask in (None, reset())
    ],
    "legs_rnn": [
        (
            *(randn(B, T, 2), randn(B, T, 2 * N), randn(B, N), randn(B, 2, 4)),
            (torch.arange(T) + torch.tensor([[3.0], [other]])).double().reciprocal(),
            torch.zeros(B, T, dtype=torch.bool) if mask is None else mask,
            [randn(2, N), randn(2 * N, 8)],
            *(mask, rule, even),
        )
        for other, mask, rule, even in (
            *((3, None, "bilinear", True), (5, reset(), "bilinear", True)),
            *((3, None, "zoh", True), (5, reset(), "bilinear", False)),
        )
    ],
    "timed_rnn": [
        (
            *(randn(B, T, 2), randn(B, T, 2 * N), randn(B, N), randn(B, 2, 4)),
            [randn(4, 4) - torch.eye(4).double(), randn(4), torch.rand(B, T).double()],
            [randn(2, N), randn(2 * N, 8)],
            *(mask, rule),
        )
        for mask, rule in ((None, "bilinear"), (reset(), "zoh"))
    ],
    "timed_lssl": [
        (randn(B, T, 2), randn(B, 2, 4), lengths, system, mask, 0.5)
        for lengths, system, mask in (
            (torch.rand(B, T, 2).double(), [randn(4, 4) - torch.eye(4).double(), randn(4)], None),
            (torch.rand(B, T, 2).double(), [], reset()),
        )
    ],
    "timed_lmu": [
        (
            *(randn(B, T, 2), randn(B, T, N), randn(B, N), randn(B, 2, 4)),
            [randn(4, 4) - torch.eye(4).double(), randn(4), torch.rand(B, T).double()],
            [randn(N, 8), *back],
            *(mask, "bilinear"),
        )
        for back, mask in (([], None), ([randn(N, N), randn(2, N), randn(2, 8)], reset()))
    ],
    "inner_scan": [
        (
            *("regression", "gelu", *(randn(B, T, 2, 3) for _ in range(3)), rates(), *more),
            *([randn(2, 3, 3)], [randn(B, 2, 3, 3)], pending, velocity, []),
            *(torch.arange(T).expand(B, T), size),
        )
        for more, pending, velocity, size in (
            ((None, None, None), [], [], 1),
            (
                *((rates(), rates(), randn(2)), [torch.zeros(B, 2, 3, 3).double()]),
                *([randn(B, 2, 3, 3)], 2),
            ),
        )
    ],
    "ridge_solve": [
        (
            *(randn(B, T, 2, 3), randn(B, T, 2, 3), rates(), -rates()),
            torch.rand(2, 3).double().add_(0.5).requires_grad_(),
            (torch.eye(3).double() * 0.3).expand(B, 2, 3, 3).clone().requires_grad_(),
            *(mask, 3),
        )
        for mask in (None, reset())
    ],
    "fenwick_scan": [
        (
            *(randn(B, T, 2, 3), randn(B, T, 2, 3), randn(B, T, 2, 2), -rates(), beta),
            *(randn(B, T, 2, 4), start, position, mask, None),
        )
        for beta, start, position, mask in (
            (None, None, None, None),
            (rates(), randn(B, 2, 4, 3, 2), torch.tensor([3, 5]), reset()),
        )
    ],
    "self_referential": [(randn(B, T, 2, 3), randn(2, 3, 13), randn(B, 2, 3, 13), reset())],
}
each = pytest.mark.parametrize(
    ("name", "arguments"), [(name, case) for name, cases in CASES.items() for case in cases]
)


def operator(name):
    return getattr(torch.ops.linrnn, name).default


def test_every_operator_is_tried():
    assert {name for name, op in ALL.items() if isinstance(op, Composed)} == set(CASES)


@pytest.mark.unchecked  # it traces each call some ten times
@each
def test_pytorch_finds_nothing_wrong_with_it(name, arguments):
    torch.library.opcheck(operator(name), arguments)


@pytest.mark.slow
@pytest.mark.unchecked
@each
def test_second_derivatives(name, arguments):
    """Second derivatives by dependent arguments: `gradgradcheck` has independent ones.

    The law of derivatives has the quick cases: it compares further modes as well.
    """
    if arguments[0] == "softmax":
        pytest.skip("PyTorch's fused attention on a CPU has none")
    if arguments[0] == "h2o":
        pytest.skip("the weight that an entry has had is a result without a gradient")
    if name == "ridge_solve":
        pytest.skip("the residual is a result without a gradient")
    tensors = [x for x in tree_leaves(list(arguments)) if differentiable(x)]

    def value(point):
        """A number; the first argument depends on the point, each further one on the one before."""
        changed, cause = [], point
        for x in tensors:
            ramp = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view(x.shape)
            changed.append(x.detach() + 0.3 * cause.real.sum().sin() * ramp)
            cause = changed[-1]
        remaining = iter(changed)
        call = tree_map(lambda x: next(remaining) if differentiable(x) else x, list(arguments))
        return sum(y.real.sin().sum() for y in operator(name)(*call))

    point = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, point)
    assert torch.autograd.gradgradcheck(value, point)


def differentiable(x):
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def test_results_share_no_memory(monkeypatch):
    monkeypatch.setattr(_op, "ALL", {})

    @composed("test_shared", "Tensor x", lambda x: (x.new_empty(x.shape), x.new_empty(x.shape)))
    def twice(x):
        return x, x

    x = torch.ones(3)
    first, second = torch.ops.linrnn.test_shared(x)
    assert len({h.data_ptr() for h in (x, first, second)}) == 3
    assert twice(x)[0] is x


def test_it_computes_outside_of_autocast():
    arguments = CASES["self_referential"][0]
    low = [x if x is None or x.dtype == torch.bool else x.detach().float() for x in arguments]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.ops.linrnn.self_referential(*low)
    assert all(map(torch.equal, inside, torch.ops.linrnn.self_referential(*low)))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_without_autocast(device):
    with torch.autocast("cpu", dtype=torch.bfloat16), without_autocast(torch.device(device)):
        assert torch.is_autocast_enabled("cpu") == (device == "meta")


def test_a_window_is_mapped_inside_of_another_transform():
    """Its start is no number then, at whatever level it is mapped."""
    q, k, v = (torch.randn(B, 1, T, 2, 4, dtype=torch.float64) for _ in range(3))
    sight = torch.tensor([[0, 1, 2, 2, 2], [0, 0, 1, 2, 2]])[:, None]

    def attended(q, k, v, sight):
        return attend("softmax", q, k, v, sight, window=3, whole=False)

    found = torch.func.vmap(torch.func.jacfwd(attended))(q, k, v, sight)
    for i in range(B):
        one = torch.func.jacfwd(attended)(q[i], k[i], v[i], sight[i])
        torch.testing.assert_close(found[i], one)
