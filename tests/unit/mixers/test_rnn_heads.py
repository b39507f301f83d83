"""`n_heads` of the classical cells: matrices diagonal in blocks, as FlashRNN has them."""

from functools import partial

import pytest
import torch
from torch import nn

from linrnn.errors import ArgumentError
from linrnn.mixers import GRU, LSTM, TanhRNN
from linrnn.ops import use_backend
from linrnn.ops.cell.cell_scan import forms
from linrnn.ops.cell.dense_recurrence import CELLS
from linrnn.testing import check_property

CASES = {
    "tanh": (TanhRNN, {}),
    "tanh_no_bias": (TanhRNN, {"bias": False}),
    "lstm": (LSTM, {}),
    "lstm_no_bias": (LSTM, {"bias": False}),
    "lstm_peephole": (LSTM, {"peepholes": True}),
    "lstm_coupled": (LSTM, {"coupled": True}),
    "lstm_coupled_peephole": (LSTM, {"coupled": True, "peepholes": True}),
    "lstm_refined": (LSTM, {"gates": "refine"}),
    "gru": (GRU, {}),
    "gru_no_bias": (GRU, {"bias": False}),
    "gru_before": (GRU, {"reset_gate": "before"}),
    "gru_refined": (GRU, {"gates": "refine"}),
    "gru_before_refined": (GRU, {"reset_gate": "before", "gates": "refine"}),
    "learned_start": (GRU, {"learn_initial": True}),
}
each_case = pytest.mark.parametrize("case", CASES)
MATRICES = {TanhRNN: ("B", "A"), LSTM: ("weight_ih_l0", "weight_hh_l0")}
MATRICES[GRU] = MATRICES[LSTM]


def golden(cls, gates, blocks):
    """The last h of the example of the public code: which of its gates and blocks are in rows.

    Its products with h have the transposed blocks, and its inputs are what W x is here.
    """
    R = (torch.arange(1.0, 33).double().sin() / 2).view(4, 2, 2, 2).mT
    Wx = torch.arange(1.0, 65).double().cos().view(1, 4, 4, 4)[:, :, gates].flatten(2)
    layer = cls(Wx.shape[-1], d_state=4, n_heads=2, bias=False, dtype=torch.float64)
    into, recurrent = (layer.get_parameter(name) for name in MATRICES[cls])
    with torch.no_grad():
        into.copy_(torch.eye(len(into)))
        recurrent.copy_(R[blocks].reshape(-1, 2))
    _, last = layer(Wx)
    return last["h"] if cls is LSTM else last


@pytest.mark.parametrize(
    ("cls", "gates", "blocks", "expected"),
    [
        (TanhRNN, [0], [0], [0.238027, 0.856306, 0.801375, -0.109556]),
        (LSTM, [0, 1, 2, 3], [0, 1, 2, 3], [0.147444, 0.116014, -0.299550, -0.106721]),
        # inputs r, z, n there, products n, r, z
        (GRU, [0, 1, 2], [1, 2, 0], [0.493132, 0.090914, -0.252936, 0.061990]),
    ],
)
def test_golden_numbers(cls, gates, blocks, expected):
    expected = torch.tensor([expected], dtype=torch.float64)
    torch.testing.assert_close(golden(cls, gates, blocks), expected, rtol=0, atol=1e-6)


def pair(case, n_heads=2):
    """A layer in heads, and one with the same matrix, zeros outside of its blocks."""
    cls, options = CASES[case]
    torch.manual_seed(0)
    heads = cls(6, d_state=6, n_heads=n_heads, dtype=torch.float64, **options)
    for p in heads.parameters():
        nn.init.normal_(p, std=0.6)
    whole = cls(6, d_state=6, dtype=torch.float64, **options)
    name = MATRICES[cls][1]
    weights = heads.state_dict()
    blocks = weights[name].view(-1, n_heads, 6 // n_heads, 6 // n_heads)  # gate, head, row, column
    weights[name] = torch.cat([torch.block_diag(*gate) for gate in blocks])
    whole.load_state_dict(weights)
    return heads, whole, name


@pytest.mark.parametrize("backend", [None, "reference"])
@each_case
def test_equals_the_full_matrix_of_the_blocks_gradients_too(case, backend):
    heads, whole, name = pair(case)
    x = torch.randn(3, 11, 6, dtype=torch.float64, requires_grad=True)
    reset = torch.zeros(3, 11, dtype=torch.bool)
    reset[1, 4] = reset[2, 0] = True
    grads = []
    with use_backend(backend):
        y, _ = heads(x, reset=reset)
        expected, _ = whole(x, reset=reset)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-13)
        for layer, z in ((heads, y), (whole, expected)):
            sources = dict(layer.named_parameters()) | {"x": x}
            weight = torch.linspace(-1, 1, z.numel(), dtype=z.dtype).view_as(z)
            got = torch.autograd.grad((z * weight).sum(), [*sources.values()])
            grads.append(dict(zip(sources, got, strict=True)))
    gates = grads[1][name].view(-1, 2, 3, 2, 3)  # gate, head, row, head, column
    grads[1][name] = torch.stack([gates[:, i, :, i] for i in range(2)], 1).flatten(0, 2)
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-11)


@each_case
def test_steps_equal_the_whole(case):
    heads, _, _ = pair(case, n_heads=3)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    y, last = heads(x)
    state, steps = heads.init_state(2), []
    for x_t in x.unbind(1):
        y_t, state = heads.step(x_t, state)
        steps.append(y_t)
    torch.testing.assert_close(torch.stack(steps, 1), y, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("law", ["reset_and_packing", "gradients", "round_trip", "low_precision"])
@pytest.mark.parametrize("cls", [TanhRNN, LSTM, GRU])
def test_keeps_the_laws(cls, law):
    check_property(law, partial(cls, n_heads=2))


def test_one_head_is_the_layer_without():
    for cls in MATRICES:
        layers = []
        for options in ({}, {"n_heads": 1}):
            torch.manual_seed(0)
            layers.append(cls(4, d_state=6, **options))
        weights = [layer.state_dict() for layer in layers]
        torch.testing.assert_close(*weights, rtol=0, atol=0)
        x = torch.randn(2, 5, 4)
        torch.testing.assert_close(*(layer(x)[0] for layer in layers), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [kind for kind in CELLS if kind.endswith("_heads")])
def test_native_kernels_run_every_cell(kind):
    cell = CELLS[kind]
    given = {name: torch.ones(1, 2, 6) for name in cell.inputs}
    given |= {name: torch.ones(6) for name in cell.constants}
    given |= {name: torch.ones(2, 3, 3) for name in cell.matrices}
    assert forms(cell, **given)["native"] is None


@pytest.mark.parametrize("init", ["orthogonal", "limit_cycle"])
def test_every_block_begins_as_a_matrix_does(init):
    torch.manual_seed(0)
    layer = TanhRNN(4, d_state=12, n_heads=2, init=init)
    for A in layer.A.detach().chunk(2):
        scale = 1.0 if init == "orthogonal" else layer.gain
        torch.testing.assert_close(A @ A.T, scale**2 * torch.eye(6), rtol=0, atol=1e-5)
    assert not torch.equal(*layer.A.detach().chunk(2))


@pytest.mark.unchecked
@pytest.mark.parametrize("cls", [TanhRNN, LSTM, GRU])
def test_heads_that_do_not_fit_are_refused(cls):
    name = cls.__name__
    with pytest.raises(ArgumentError, match=f"{name}: n_heads must divide d_state=8, got 3"):
        cls(8, n_heads=3)
    with pytest.raises(ArgumentError, match=f"{name}: n_heads must be an integer of at"):
        cls(8, n_heads=0)


@pytest.mark.unchecked
def test_a_projection_would_mix_heads():
    with pytest.raises(ArgumentError, match=r"LSTM: proj_size must be 0 with n_heads=2.*got 4"):
        LSTM(8, n_heads=2, proj_size=4)
