"""The time between steps: a constant one is another step size, whatever a layer calls it."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from linrnn import mixers
from linrnn.mixers import (
    DLR,
    DSS,
    GSS,
    H3,
    LRU,
    S4,
    S4D,
    S5,
    SLRU,
    GatedLRU,
    LaughingHyena,
    LiquidS4,
    LogLinearMamba2,
    Mamba,
    Mamba2,
    Modal,
)

WIDTH, FACTOR = 4, 2.5


def _add_logs(*names):
    """Multiplies what is stored as a logarithm."""

    def change(layer):
        for name in names:
            layer.get_parameter(name).add_(math.log(FACTOR))

    return change


def _multiply(*names):
    def change(layer):
        for name in names:
            layer.get_parameter(name).mul_(FACTOR)

    return change


def _phase(layer):
    layer.nu_log.add_(math.log(FACTOR))
    layer.theta.mul_(FACTOR)


def _rates_and_inputs_of_mamba(layer):
    """A step enters by its product with A, and by that with B, rows of x_proj."""
    layer.A_log.add_(math.log(FACTOR))
    first = layer.dt_rank
    layer.x_proj.weight[first : first + layer.d_state].mul_(FACTOR)


def _rates_of_mamba2(layer):
    """B and the inputs have one convolution; so what is read is multiplied.

    A skip that is as much smaller, and a norm behind it, leave the rest as it is.
    """
    layer.A_log.add_(math.log(FACTOR))
    layer.D.div_(FACTOR)
    layer.norm.eps /= FACTOR**2


def _rates_of_dlr(layer):
    layer.A_re.mul_(math.sqrt(FACTOR))
    layer.A_im.mul_(FACTOR)


def _rates_of_gss(layer):
    """An input is held for the whole step."""
    _add_logs("A_log", "A_im_log")(layer)
    _multiply("C_re", "C_im")(layer)


def _rates_of_modal(layer):
    """How much longer each mode that reads a state has faded."""
    power = torch.complex(-layer.nu_log.exp(), layer.theta) * (FACTOR - 1)
    read = torch.complex(layer.R_re, layer.R_im) * power.exp()
    layer.R_re.copy_(read.real)
    layer.R_im.copy_(read.imag)
    _phase(layer)


def _rates_of_laughing_hyena(layer):
    for filters in layer.modal:
        _rates_of_modal(filters)


SLOWER = {
    "lru": (partial(LRU, d_state=6), _add_logs("nu_log", "theta_log")),
    "lru phase": (partial(LRU, parametrisation="linear_phase"), _phase),
    "lru exponential": (
        partial(LRU, parametrisation="exponential", max_phase=1.0),
        _multiply("nu", "theta"),
    ),
    "gated_lru": (GatedLRU, _add_logs("nu_log")),
    "modal": (partial(Modal, d_state=6, l_max=30), _rates_of_modal),
    "laughing_hyena": (partial(LaughingHyena, d_state=6, l_max=30), _rates_of_laughing_hyena),
    "slru": (SLRU, _add_logs("nu_log")),
    "s4d": (partial(S4D, d_state=6), _add_logs("log_dt")),
    "s4d real": (partial(S4D, d_state=6, init="real"), _add_logs("log_dt")),
    "s4d bilinear": (
        partial(S4D, d_state=6, discretisation="bilinear", separate_B=True),
        _add_logs("log_dt"),
    ),
    "s4d bandlimit": (
        partial(S4D, d_state=16, dt_min=0.05, dt_max=0.2, bandlimit=0.5),
        _add_logs("log_dt"),
    ),
    "s4": (partial(S4, d_state=6), _add_logs("log_dt")),
    "dss": (partial(DSS, d_state=6), _add_logs("log_dt")),
    "dss separate": (partial(DSS, d_state=6, separate_dt=True), _add_logs("log_dt")),
    "dlr": (partial(DLR, d_state=6), _rates_of_dlr),
    "gss": (partial(GSS, d_state=6), _rates_of_gss),
    "liquid_s4": (partial(LiquidS4, d_state=6), _add_logs("linear.log_dt")),
    "liquid_s4 kb": (partial(LiquidS4, d_state=6, kernel="kb"), _add_logs("linear.log_dt")),
    "liquid_s4 exact": (partial(LiquidS4, d_state=6, kernel="exact"), _add_logs("linear.log_dt")),
    "s5": (partial(S5, d_state=6), _add_logs("log_dt")),
    "s5 bilinear": (partial(S5, discretisation="bilinear"), _add_logs("log_dt")),
    "h3": (partial(H3, d_state=6, d_shift=3, d_head=2), _add_logs("diag.log_dt")),
    "mamba": (partial(Mamba, d_state=3), _rates_and_inputs_of_mamba),
    "mamba zoh": (partial(Mamba, d_state=3, b_disc="zoh"), _rates_and_inputs_of_mamba),
    "mamba2": (partial(Mamba2, d_state=3, d_head=4), _rates_of_mamba2),
    "log_linear_mamba2": (partial(LogLinearMamba2, d_state=3, d_head=4), _rates_of_mamba2),
}


def pair(case):
    """A layer, and the one whose steps are as much longer."""
    make, change = SLOWER[case]
    torch.manual_seed(0)
    layer = make(d_model=WIDTH, dtype=torch.float64)
    other = make(d_model=WIDTH, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    with torch.no_grad():
        change(other)
    return layer, other


def signal(*shape):
    return torch.randn(*shape, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("case", SLOWER)
def test_a_constant_time_is_another_step_size(case):
    layer, other = pair(case)
    x = signal(2, 20)
    dt = torch.full((2, 20), FACTOR, dtype=torch.float64)
    y = layer(x, dt=dt)[0]
    assert_close(y, other(x)[0])
    assert not torch.allclose(y, layer(x)[0], rtol=1e-3)


def test_all_timed_layers_of_the_library_are_here():
    known = {case.split()[0] for case in SLOWER}
    linear = {"ssm", "diagonal"}  # the others have an oracle that reads times
    timed = {n for n in mixers.names() if mixers.load(n).timed and mixers.load(n).family in linear}
    compared = {"hippo", "lmu", "lssl"}  # with SciPy and with loops, in files of their own
    assert timed == known | compared


@pytest.mark.parametrize("name", ["lru", "slru", "s4d", "s5", "dss", "dlr"])
def test_time_without_input_is_one_long_step(name):
    """An exact transition: a gap is read in any pieces, where nothing comes in."""
    torch.manual_seed(0)
    layer = mixers.load(name)(d_model=WIDTH, dtype=torch.float64)
    _, state = layer(signal(1, 5))
    nothing = torch.zeros(1, 3, WIDTH, dtype=torch.float64)
    pieces = torch.tensor([[0.3, 1.2, 0.75]], dtype=torch.float64)
    _, in_three = layer(nothing, state, dt=pieces)
    _, in_one = layer(nothing[:, :1], state, dt=pieces.sum(1, keepdim=True))
    assert_close(in_three, in_one)


def test_a_held_input_is_read_in_any_pieces_by_the_zero_order_hold():
    torch.manual_seed(0)
    for mixer in (S4D, S5, DSS):
        layer = mixer(WIDTH, dtype=torch.float64)
        x, pieces = signal(1, 1), torch.tensor([[0.3, 1.2, 0.75]], dtype=torch.float64)
        y, in_three = layer(x.expand(1, 3, WIDTH), dt=pieces)
        y_one, in_one = layer(x, dt=pieces.sum(1, keepdim=True))
        assert_close(in_three, in_one)
        assert_close(y[:, -1], y_one[:, 0])


def test_naive_lru_takes_powers_of_its_eigenvalues():
    torch.manual_seed(0)
    layer = LRU(WIDTH, parametrisation="naive", dtype=torch.float64)
    lam, state = layer.eigenvalues(), layer(signal(1, 5))[1]
    nothing = torch.zeros(1, WIDTH, dtype=torch.float64)
    _, after = layer.step(nothing, state, dt=torch.tensor([2.0], dtype=torch.float64))
    assert_close(after, lam**2 * state)
    _, after = layer.step(nothing, state, dt=torch.tensor([0.5], dtype=torch.float64))
    assert_close(after, torch.sqrt(lam) * state)
