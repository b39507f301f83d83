"""LinOSS against golden numbers, its equation step by step, and known eigenvalues."""

from math import pi

import pytest
import torch
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import LinOSS

F64 = torch.float64
#: z and x of one oscillator of A = 0.8, in steps of 0.5, driven by 1, 3, -2, 1.
IM = [(0.416667, 0.208333), (1.527778, 0.972222), (0.115741, 1.030093), (0.169753, 1.114969)]
IMEX = [(0.5, 0.25), (1.9, 1.2), (0.42, 1.41), (0.356, 1.588)]


def one_oscillator(discretisation):
    layer = LinOSS(1, discretisation=discretisation, dtype=F64)
    with torch.no_grad():
        layer.steps.zero_()
        layer.A.fill_(0.8)
        layer.B.copy_(torch.tensor([1.0, 0.0])[None, :, None])
        if layer.G is not None:
            layer.G.fill_(0.5 * 0.8)  # "im" is "damped" with G = Delta A
    return layer


@pytest.mark.parametrize(
    ("discretisation", "expected"), [("im", IM), ("imex", IMEX), ("damped", IM)]
)
def test_states_are_the_golden_numbers(discretisation, expected):
    layer, state = one_oscillator(discretisation), None
    for number, (z, x) in zip((1.0, 3.0, -2.0, 1.0), expected, strict=True):
        _, state = layer(torch.full((1, 1, 1), number, dtype=F64), state)
        assert state["z"].item() == pytest.approx(z, abs=1e-6)
        assert state["x"].item() == pytest.approx(x, abs=1e-6)


def transcription(layer, u):
    """The equation with complex numbers, one step after the other."""
    step, P = layer.steps.sigmoid(), layer.d_state
    B, C = torch.complex(layer.B[:, 0], layer.B[:, 1]), torch.complex(*(layer.C * SIGNS).unbind(-1))
    A, S = layer.A.relu(), 1 + 0 * step
    if layer.discretisation == "im":
        S = 1 + step**2 * A
    if layer.discretisation == "damped":
        S = 1 + step * layer.G.relu()
        low, high = ((2 + S - 1 + sign * 2 * S.sqrt()) / step**2 for sign in (-1, 1))
        A = low + (layer.A - low).relu() - (layer.A - high).relu()
    z = x = torch.zeros(P, dtype=torch.complex128)
    outputs = []
    for row in u:
        z = (z + step * (-A * x + B @ row.to(B.dtype))) / S
        x = x + step * z
        outputs.append((C @ x).real + layer.D * row)
    return torch.stack(outputs)


SIGNS = torch.tensor([1.0, -1.0], dtype=F64)


@pytest.mark.parametrize("discretisation", ["im", "imex", "damped"])
def test_equals_a_transcription_split_and_whole_gradients_too(discretisation):
    options = {"d_state": 5, "discretisation": discretisation, "dtype": F64}
    check_equal(LinOSS(3, **options), transcription)


def test_A_is_clipped_to_where_eigenvalues_are_complex():
    layer = LinOSS(4, d_state=64, discretisation="damped", dtype=F64)
    with torch.no_grad():
        layer.A.mul_(torch.linspace(-2, 30, 64, dtype=F64))
        lam = layer.eigenvalues()
        expected = (1 + layer.steps.sigmoid() * layer.G.relu()).rsqrt()
    torch.testing.assert_close(lam.abs(), expected.expand(2, 64), rtol=1e-6, atol=1e-6)
    check_equal(layer, transcription)


def test_damped_oscillators_begin_on_a_ring():
    layer = LinOSS(
        4, d_state=2000, discretisation="damped", r_min=0.8, r_max=0.95, max_phase=pi / 2
    )
    lam = layer.eigenvalues().detach()
    radius, phase = lam.abs(), lam.angle().abs()
    assert radius.min() > 0.799
    assert radius.max() < 0.951
    assert radius.square().mean() == pytest.approx((0.8**2 + 0.95**2) / 2, abs=0.01)
    assert phase.max() < pi / 2 + 1e-3
    assert phase.mean() == pytest.approx(pi / 4, abs=0.03)


def test_moduli_of_the_undamped():
    """Implicit steps forget by 1 / (1 + Delta^2 A) in the square, the others nothing."""
    layer = LinOSS(4, d_state=50, dtype=F64)
    S = 1 + layer.steps.sigmoid() ** 2 * layer.A.relu()
    torch.testing.assert_close(layer.eigenvalues().abs(), S.rsqrt().expand(2, 50))
    layer = LinOSS(4, d_state=50, discretisation="imex", dtype=F64)
    torch.testing.assert_close(layer.eigenvalues().abs(), torch.ones(2, 50, dtype=F64))


@pytest.mark.parametrize("discretisation", ["im", "imex", "damped"])
def test_a_time_is_a_factor_of_the_step(discretisation):
    layer = LinOSS(3, discretisation=discretisation, dtype=F64)
    slow = LinOSS(3, discretisation=discretisation, dtype=F64)
    slow.load_state_dict(layer.state_dict())
    with torch.no_grad():
        slow.steps.copy_((0.25 * layer.steps.sigmoid()).logit())
    x = torch.randn(2, 7, 3, dtype=F64)
    y, _ = layer(x, dt=torch.full((2, 7), 0.25))
    torch.testing.assert_close(y, slow(x)[0])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discretisation": "zoh"}, "no LinOSS discretisation named 'zoh'"),
        ({"d_state": 0}, "LinOSS: d_state must be an integer of at least 1, got 0"),
        ({"r_min": 1.0}, "LinOSS: r_min and r_max must satisfy"),
        ({"max_phase": 7.0}, r"LinOSS: max_phase must be in \(0, 2 pi\], got 7.0"),
        ({"step_std": 0.0}, "LinOSS: step_std must be positive and finite, got 0.0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        LinOSS(8, **options)
