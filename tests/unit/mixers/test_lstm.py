"""The LSTM against torch.nn.LSTM with the same weights, and its resets against separate calls."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from linrnn.errors import ArgumentError
from linrnn.mixers import LSTM
from linrnn.ops import use_backend
from linrnn.ops.cell.cell_scan import forms
from linrnn.ops.cell.dense_recurrence import CELLS, _weights_apart
from linrnn.testing import check_property


def grads(y, h, c, sources):
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    loss = (y * weight).sum() + h.pow(2).sum() + c.pow(3).sum()
    return torch.autograd.grad(loss, sources)


@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch_with_copied_weights(bias):
    torch.manual_seed(0)
    theirs = nn.LSTM(5, 5, batch_first=True, bias=bias, dtype=torch.float64)
    ours = LSTM(5, bias=bias, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x, h0, c0 = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 17, 5), (3, 5), (3, 5))
    )
    y, last = ours(x, {"h": h0, "c": c0})
    expected_y, (h, c) = theirs(x, (h0[None], c0[None]))
    want = expected_y, h[0], c[0]
    torch.testing.assert_close((y, last["h"], last["c"]), want, rtol=0, atol=1e-14)
    names = [n for n, _ in theirs.named_parameters()]
    got = grads(y, last["h"], last["c"], [x, h0, c0, *(ours.get_parameter(n) for n in names)])
    sources = [x, h0, c0, *(theirs.get_parameter(n) for n in names)]
    expected = grads(expected_y, h, c, sources)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_equation_of_the_docstring():
    torch.manual_seed(0)
    layer = LSTM(3, d_state=4, dtype=torch.float64)
    x = torch.randn(1, 6, 3, dtype=torch.float64)
    h, c = torch.randn(2, 1, 4, dtype=torch.float64)
    y, _ = layer(x, {"h": h, "c": c})
    for t in range(6):
        gates = x[:, t] @ layer.weight_ih_l0.T + layer.bias_ih_l0
        gates = gates + h @ layer.weight_hh_l0.T + layer.bias_hh_l0
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        torch.testing.assert_close(y[:, t], layer.out_proj(h))


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("gates", ["plain", "chrono"])
def test_a_projection_stands_in_the_recurrence(gates, backend):
    torch.manual_seed(0)
    t_max = {"t_max": 9} if gates == "chrono" else {}
    ours = LSTM(5, d_state=7, proj_size=3, gates=gates, **t_max, dtype=torch.float64)
    theirs = nn.LSTM(5, 7, batch_first=True, proj_size=3, dtype=torch.float64)
    theirs.load_state_dict({n: p for n, p in ours.state_dict().items() if "out_proj" not in n})
    x, h, c = (torch.randn(*shape).double() for shape in ((2, 9, 5), (2, 3), (2, 7)))
    expected, last = theirs(x, (h[None], c[None]))
    with use_backend(backend):
        y, state = ours(x, {"h": h, "c": c})
        one, _ = ours.step(x[:, 0], {"h": h, "c": c})
    torch.testing.assert_close(y, ours.out_proj(expected))
    torch.testing.assert_close(one, y[:, 0])
    torch.testing.assert_close((state["h"], state["c"]), (last[0][0], last[1][0]))


@pytest.mark.parametrize(
    "options",
    [{"proj_size": 4}, {"proj_size": -1}, {"proj_size": 2, "learn_initial": True}],
    ids=str,
)
def test_a_projection_that_does_not_fit_is_refused(options):
    with pytest.raises(ArgumentError, match=r"LSTM: proj_size must be"):
        LSTM(4, **options)


VARIANTS = [{"peepholes": True}, {"coupled": True}, {"peepholes": True, "coupled": True}]
each_variant = pytest.mark.parametrize("options", VARIANTS, ids=str)


def transcription(layer, x, h, c):
    """Every gate written out, one step at a time."""

    def gate(u):
        return 1 / (1 + torch.exp(-u))

    y, count = [], 3 if layer.coupled else 4
    for x_t in x.unbind(1):
        u = x_t @ layer.weight_ih_l0.T + layer.bias_ih_l0
        parts = list((u + h @ layer.weight_hh_l0.T + layer.bias_hh_l0).chunk(count, 1))
        peeps = layer.weight_ch_l0 if layer.peepholes else [0.0] * (count - 1)
        f = gate(parts[-3] + peeps[-2] * c)
        i = 1 - f if layer.coupled else gate(parts[0] + peeps[0] * c)
        c = f * c + i * torch.tanh(parts[-2])
        h = gate(parts[-1] + peeps[-1] * c) * torch.tanh(c)
        y.append(h)
    return torch.stack(y, 1), h, c


@each_variant
def test_variants_equal_a_transcription_gradients_too(options):
    torch.manual_seed(0)
    layer = LSTM(3, dtype=torch.float64, **options)
    x, h0, c0 = (
        torch.randn(2, *s, dtype=torch.float64, requires_grad=True) for s in ((9, 3), (3,), (3,))
    )
    expected = transcription(layer, x, h0, c0)
    first, state = layer(x[:, :4], {"h": h0, "c": c0})
    rest, last = layer(x[:, 4:], state)
    got = torch.cat([first, rest], 1), last["h"], last["c"]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)
    sources = [x, h0, c0, *layer.parameters()]
    allowed = {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(grads(*got, sources), grads(*expected, sources), **allowed)


@each_variant
@pytest.mark.parametrize("law", ["reset_and_packing", "gradients", "round_trip", "low_precision"])
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(LSTM, **options))


def projected(layer, x, h, c):
    """`transcription` and the refined gate, with the projection behind every step."""
    y, weights = [], {n: p.detach() for n, p in layer.named_parameters()}
    count, D = (3 if layer.coupled else 4), layer.d_state
    for x_t in x.unbind(1):
        u = x_t @ weights["weight_ih_l0"].T + weights["bias_ih_l0"] + weights["bias_hh_l0"]
        *r, f, g, o = (u + h @ weights["weight_hh_l0"].T).split([D] * count, 1)
        p = weights["weight_ch_l0"] if layer.peepholes else torch.zeros(count - 1, D).double()
        f = torch.sigmoid(f + p[-2] * c)
        if layer.gates == "ur":
            r = r[0].sigmoid()
            f = 2 * r * f + (1 - 2 * r) * f**2
        i = 1 - f if layer.coupled or layer.gates == "ur" else torch.sigmoid(r[0] + p[0] * c)
        c = f * c + i * torch.tanh(g)
        h = (torch.sigmoid(o + p[-1] * c) * torch.tanh(c)) @ weights["weight_hr_l0"].T
        y.append(h)
    return torch.stack(y, 1), h, c


PROJECTED = [*VARIANTS, {"gates": "ur"}]


@pytest.mark.parametrize("options", PROJECTED, ids=str)
def test_every_variant_has_a_projection(options):
    torch.manual_seed(0)
    layer = LSTM(3, d_state=5, proj_size=3, dtype=torch.float64, **options)
    x, h, c = (torch.randn(2, *size).double() for size in ((9, 3), (3,), (5,)))
    expected = projected(layer, x, h, c)
    y, last = layer(x, {"h": h, "c": c})
    torch.testing.assert_close((y, last["h"], last["c"]), expected, rtol=0, atol=1e-14)
    one, _ = layer.step(x[:, 0], {"h": h, "c": c})
    torch.testing.assert_close(one, expected[0][:, 0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("options", PROJECTED, ids=str)
@pytest.mark.parametrize("law", ["reset_and_packing", "gradients", "low_precision"])
def test_every_variant_with_a_projection_keeps_the_laws(law, options):
    check_property(law, partial(LSTM, d_state=5, proj_size=3, **options))


def test_variants_have_native_kernels():
    for kind in ("lstm_peephole", "lstm_coupled", "lstm_coupled_peephole"):
        cell = CELLS[kind]
        given = {name: torch.ones(1, 2, 3) for name in cell.inputs}
        given |= {name: torch.ones(3) for name in cell.constants}
        given |= {name: torch.ones(3, 3) for name in cell.matrices}
        assert forms(cell, **given)["native"] is None


def test_variants_have_the_parameters_they_need():
    shapes = {n: tuple(p.shape) for n, p in LSTM(2, d_state=5, **VARIANTS[2]).named_parameters()}
    assert shapes["weight_hh_l0"] == (15, 5)
    assert shapes["weight_ch_l0"] == (2, 5)
    assert LSTM(2, d_state=5, peepholes=True).weight_ch_l0.shape == (3, 5)
    forget = LSTM(2, coupled=True, forget_bias=1.5)
    total = forget.bias_ih_l0 + forget.bias_hh_l0
    torch.testing.assert_close(total[:2], torch.full((2,), 1.5))
    assert "weight_ch_l0" not in LSTM(2).state_dict()


def resets():
    """Three rows that begin anew at steps of their own: never, at the first, at two others."""
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[1, 0] = reset[2, 4] = reset[2, 5] = True
    return reset


def test_rows_reset_at_their_own_steps_and_forget_nan():
    torch.manual_seed(0)
    layer = LSTM(4, dtype=torch.float64)
    x = torch.randn(3, 9, 4, dtype=torch.float64)
    state = {k: torch.randn(3, 4, dtype=torch.float64) for k in ("h", "c")}
    x[2, 3] = float("nan")
    state["c"][1] = float("inf")
    y, last = layer(x, state, reset=resets())
    first, third = ({k: h[i : i + 1] for k, h in state.items()} for i in (0, 2))
    torch.testing.assert_close(y[:1], layer(x[:1], first)[0])
    torch.testing.assert_close(y[1:2], layer(x[1:2])[0])
    torch.testing.assert_close(y[2:, :3], layer(x[2:, :3], third)[0])
    assert y[2, 3].isnan().all()
    torch.testing.assert_close(y[2:, 4:5], layer(x[2:, 4:5])[0])
    alone, alone_last = layer(x[2:, 5:])
    torch.testing.assert_close(y[2:, 5:], alone)
    torch.testing.assert_close({k: h[2:] for k, h in last.items()}, alone_last)


@pytest.mark.unchecked
def test_compiled_resets_equal_eager_ones():
    layer = LSTM(4)
    x = torch.randn(3, 9, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, reset=resets())[0], layer(x, reset=resets())[0])


@pytest.mark.unchecked
def test_compiles_for_an_input_without_gradient():
    layer, x = LSTM(4), torch.randn(2, 7, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y, expected = compiled(x)[0], layer(x)[0]
    torch.testing.assert_close(y, expected)
    grads = [torch.autograd.grad(z.square().sum(), [*layer.parameters()]) for z in (y, expected)]
    torch.testing.assert_close(*grads)


def test_forget_bias_sets_the_initial_forget_gate():
    layer = LSTM(3, d_state=2, forget_bias=1.5)
    total = layer.bias_ih_l0 + layer.bias_hh_l0
    torch.testing.assert_close(total[2:4], torch.full((2,), 1.5))
    assert total[:2].abs().max() < 1.5
    drawn = LSTM(3, d_state=200)
    assert (drawn.bias_ih_l0 + drawn.bias_hh_l0)[200:400].std() > 0


def test_large_forget_bias_remembers():
    """With f = sigmoid(b) the cell decays by 1 - exp(-b) a step, when nothing is written."""
    layer = LSTM(2, forget_bias=5.0, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
        layer.weight_ih_l0.zero_()
        layer.bias_ih_l0[4:6] = 0.0  # the candidate g
        layer.bias_hh_l0[4:6] = 0.0
    start = {k: torch.ones(1, 2, dtype=torch.float64) for k in ("h", "c")}
    _, last = layer(torch.zeros(1, 100, 2, dtype=torch.float64), start)
    expected = torch.sigmoid(torch.tensor(5.0, dtype=torch.float64)) ** 100
    torch.testing.assert_close(last["c"], expected.expand(1, 2))


BAD = [
    ({"d_state": 0}, "LSTM: d_state must be an integer of at least 1, got 0"),
    ({"forget_bias": float("inf")}, "LSTM: forget_bias must be finite, got inf"),
    ({"forget_bias": 1.0, "bias": False}, "forget_bias must be None without bias, got 1.0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(ArgumentError, match=message):
        LSTM(4, **options)


def test_what_cudnn_says_of_weights_apart_is_not_passed_on():
    """It is seen where the kernels are cuDNN's alone; anything else is passed on."""
    said = "RNN module weights are not part of single contiguous chunk of memory. This means"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for device in ("cuda", "cpu"):
            with _weights_apart(torch.device(device)):
                warnings.warn(said, UserWarning, stacklevel=1)
                warnings.warn(f"{device} is warm", UserWarning, stacklevel=1)
    assert [str(w.message).split()[0] for w in heard] == ["cuda", "RNN", "cpu"]
