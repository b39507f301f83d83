"""Long filters into small recurrences, in any model, and how near they come."""

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
import torch

import linrnn
from linrnn import RNN, SequenceModel, mixers
from linrnn.distillation import distill_orders
from linrnn.errors import ArgumentError
from linrnn.mixers import S4D, Hyena, LaughingHyena, Modal
from linrnn.testing import check_close

#: Every layer with long filters, in sizes at which each is a recurrence of order 8, or None.
SMALL = {
    "dlr": ({"d_state": 4, "kind": "real"}, 4),
    "dss": ({"d_state": 4}, 8),
    "hyena": ({"l_max": 48, "frequency": 6.0, "order": 3}, None),
    "laughing_hyena": ({"d_state": 4, "order": 3, "l_max": 48}, 8),
    "modal": ({"d_state": 4, "l_max": 48}, 8),
    "s4": ({"d_state": 8}, 8),
    "s4d": ({"d_state": 8}, 8),
    "sgconv": ({"l_max": 48, "d_kernel": 16}, None),
}
TIME = 48


def built(name, **options):
    torch.manual_seed(0)
    return mixers.build(name, 4, {**SMALL[name][0], **options}, dtype=torch.float64)


def apart(y, x):
    """Norm of the difference, as part of the norm."""
    return float((y - x).detach().norm() / x.detach().norm())


def test_every_layer_with_long_filters_is_known():
    found = set()
    for name in mixers.names():
        layer = mixers.load(name)(8)
        filters = layer.impulse_responses(5)
        if filters is None:
            with pytest.raises(ArgumentError, match="must have long filters to be distilled"):
                layer.distilled([])
            continue
        found.add(name)
        assert filters.shape[1:] == (8, 5)
        assert filters.dtype == torch.float64
        assert not filters.requires_grad
    assert found == set(SMALL)


@pytest.mark.parametrize("name", [n for n in SMALL if n not in ("hyena", "laughing_hyena")])
def test_an_impulse_response_is_what_the_layer_does_to_an_impulse(name):
    layer, impulse = built(name), torch.zeros(1, TIME + 9, 4, dtype=torch.float64)
    impulse[:, 0] = 1
    y, _ = layer(impulse)
    for length in (1, TIME - 5, TIME + 9):
        response = layer.impulse_responses(length)
        check_close(f"{length}", response[0], y[0, :length].T.detach(), roundings=2**10)


@pytest.mark.parametrize("name", SMALL)
def test_what_is_a_recurrence_is_found_exactly_and_the_rest_ever_nearer(name):
    layer = built(name)
    x = torch.randn(2, TIME, 4, dtype=torch.float64)
    y, before = layer(x)[0], 2.0
    for found in distill_orders(layer, (2, 4, 8, 16), length=TIME):
        (fit,) = found.layers
        error = apart(found.model(x)[0], y)
        assert (fit.errors >= fit.floors * (1 - 1e-6) - 1e-12).all()
        assert fit.name == ""
        assert fit.kind == type(layer).__name__
        assert fit.errors.shape == layer.impulse_responses(1).shape[:2]
        if SMALL[name][1] is not None and found.order >= SMALL[name][1]:
            assert fit.largest < 1e-7
            assert error < 1e-7
        else:
            assert fit.largest < before
            assert error < 2 * fit.largest  # of few inputs, not of all there could be
        before = fit.largest
        assert "constant_memory" not in found.model.declared
    assert before < {"sgconv": 0.6, "hyena": 0.1}.get(name, 1e-7)


def test_as_scipy_filters():
    """The distilled layer does what SciPy does with the state space that it is distilled of."""
    layer = built("s4d")
    x = torch.randn(1, 60, 4, dtype=torch.float64)
    made = linrnn.distill(layer, 8, length=TIME).model
    system = layer.system()
    for c in range(4):
        a, b, out = (z[c].detach().numpy() for z in (system.a, system.b, system.c))
        # in SciPy's convention the input of a step is seen by the next state alone
        blocks = [np.array([[z.real, -z.imag], [z.imag, z.real]]) for z in a]
        B = np.stack([b.real, b.imag], 1).reshape(-1, 1)
        C = np.stack([(out * a).real, -(out * a).imag], 1).reshape(1, -1)
        D = np.array([[system.d[c].item() + (out * b).real.sum()]])
        A = scipy.linalg.block_diag(*blocks)
        _, y, _ = scipy.signal.dlsim((A, B, C, D, 1), x[0, :, c].numpy())
        check_close("y", made(x)[0][0, :, c], torch.from_numpy(y[:, 0]), roundings=2**30)


def test_one_step_after_the_other_gives_the_whole():
    layer = linrnn.distill(built("hyena"), 8, length=TIME).model
    x = torch.randn(2, 20, 4, dtype=torch.float64)
    state, ys = layer.init_state(2), []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        ys.append(y_t)
    check_close("y", torch.stack(ys, 1), layer(x)[0], roundings=2**10)


def test_layers_of_a_model_are_replaced_and_nothing_else():
    model = SequenceModel(
        3, 2, mixer="hyena,attention,s4d", mixer_options={"l_max": TIME}, d_model=8, n_layers=4
    ).eval()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    found = linrnn.distill(model, 12, length=TIME)
    kinds = [type(mixer).__name__ for mixer in found.model.mixers]
    assert kinds == ["LaughingHyena", "Attention", "Modal", "LaughingHyena"]
    assert [type(mixer).__name__ for mixer in model.mixers] == [
        *("Hyena", "Attention", "S4D", "Hyena")
    ]
    assert [(fit.name, fit.kind) for fit in found.layers] == [
        ("blocks.0.mixer", "Hyena"),
        ("blocks.2.mixer", "S4D"),
        ("blocks.3.mixer", "Hyena"),
    ]
    assert len({m.d_state for m in found.model.mixers if hasattr(m, "d_state")}) == 1
    assert not found.model.training
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name])
    for name, x in found.model.state_dict().items():
        if name in before and "blocks.2.mixer" not in name:
            assert torch.equal(x, before[name]), name
            assert x.data_ptr() != model.state_dict()[name].data_ptr()
    x = torch.randn(2, TIME, 3)
    assert apart(found.model(x)[0], model(x)[0]) < 1e-3


def test_in_any_module():
    rnn = RNN("sgconv", 4, 4, 2, mixer_options={"l_max": TIME}).eval()
    made = linrnn.distill(rnn, 4, length=TIME)
    assert len(made.layers) == 2
    assert made.model(torch.randn(2, 9, 4))[0].shape == (2, 9, 4)


def test_maps_and_dtypes_around_the_filters_stay():
    layer = S4D(4, d_state=4, project=True)
    made = linrnn.distill(layer, 4, length=TIME).model
    x = torch.randn(2, 30, 4)
    assert apart(made(x)[0], layer(x)[0]) < 1e-5
    assert made.out.weight.data_ptr() != layer.out.weight.data_ptr()
    half = linrnn.distill(Hyena(4, l_max=TIME, dtype=torch.bfloat16), 4, length=TIME).model
    single = {f"modal.0.{name}" for name in half.modal[0].single_precision}
    others = {p.dtype for name, p in half.named_parameters() if name not in single}
    assert others == {torch.bfloat16}


def test_a_distilled_layer_is_distilled_again():
    layer = linrnn.distill(built("hyena"), 16, length=TIME).model
    made = linrnn.distill(layer, 4, length=TIME)
    assert isinstance(made.model, LaughingHyena)
    assert made.model.d_state <= 4 < layer.d_state


def test_filters_of_nothing_and_of_one_tap():
    layer = Modal(2, d_state=3)
    with torch.no_grad():
        layer.R_re.zero_()
        layer.R_im.zero_()
        layer.D[0] = 0
    found = linrnn.distill(layer, 2, length=9)
    assert found.layers[0].errors.tolist() == [[0, 0]]


@pytest.mark.unchecked
def test_errors():
    model = SequenceModel(3, 2, mixer="lru,gru", n_layers=2)
    with pytest.raises(
        ArgumentError,
        match=r"must have a layer with long filters, got LRU in blocks.0.mixer, GRU in "
        r"blocks.1.mixer. hyena, sgconv, s4, s4d, dss and dlr are such.",
    ):
        linrnn.distill(model, length=9)
    with pytest.raises(ArgumentError, match="long filters, got no mixer at all"):
        linrnn.distill(torch.nn.Linear(2, 2), length=9)
    layer = Hyena(4, l_max=64)
    with pytest.raises(ArgumentError, match=r"order must be at most the 31 rows .*, got 32"):
        linrnn.distill(layer, 32, length=64)
    with pytest.raises(ArgumentError, match="length must be an integer of at least 1, got 0"):
        linrnn.distill(layer, length=0)
    with pytest.raises(ArgumentError, match="at least one order, got none"):
        distill_orders(layer, [], length=64)
    with torch.no_grad():
        layer.bias[0] = torch.nan
    with pytest.raises(ArgumentError, match="the filters of Hyena must be finite over 64 steps"):
        linrnn.distill(layer, length=64)
