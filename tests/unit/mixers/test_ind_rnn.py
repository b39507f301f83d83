"""IndRNN against torch.nn.RNN with a diagonal matrix and SciPy's filter, its bound, its start."""

import numpy as np
import pytest
import torch
from plain_loop import check_equal, lead_out
from scipy.signal import lfilter
from scipy.stats import kstest

from linrnn import SequenceModel
from linrnn.errors import LinrnnError
from linrnn.mixers import IndRNN
from linrnn.mixers.ind_rnn import CELLS
from linrnn.ops import cell_scan

PHI = {"relu": torch.relu, "tanh": torch.tanh, "identity": lambda x: x}


def transcription(layer, x):
    """One step after another."""
    h = layer.h0 if layer.learn_initial else x.new_zeros(layer.d_state)
    y = []
    for u in x @ layer.in_proj.weight.T + layer.in_proj.bias:
        h = PHI[layer.nonlinearity](u + layer.u * h)
        y.append(h)
    return lead_out(layer, torch.stack(y))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nonlinearity": "tanh", "d_state": 5},
        {"nonlinearity": "identity"},
        {"learn_initial": True, "t_max": 20},
    ],
    ids=str,
)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(IndRNN(3, dtype=torch.float64, **options), transcription)


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_equals_a_dense_network_with_a_diagonal_matrix(nonlinearity):
    layer = IndRNN(3, d_state=3, nonlinearity=nonlinearity, dtype=torch.float64)
    dense = torch.nn.RNN(3, 3, nonlinearity=nonlinearity, bias=False, batch_first=True).double()
    weights = (layer.in_proj.weight, layer.u.diag())
    with torch.no_grad():
        for theirs, ours in zip(dense.parameters(), weights, strict=True):
            theirs.copy_(ours)
    x = torch.randn(2, 30, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], dense(x)[0])


def test_without_a_nonlinearity_it_is_a_filter():
    t = np.arange(1, 6)
    x, u = torch.from_numpy(np.cos(t)).view(1, 5, 1), torch.tensor([0.7], dtype=torch.float64)
    y, _ = cell_scan(CELLS["identity"], x=x, u=u)
    np.testing.assert_allclose(y.flatten(), lfilter([1], [1, -0.7], np.cos(t)), rtol=1e-12)


def test_bound_holds_at_the_start_and_after_every_step_of_the_optimiser():
    layer = IndRNN(16, t_max=10, gamma=3.0)
    bound = 3 ** (1 / 10)
    assert layer.u.max() <= bound
    optimiser = torch.optim.SGD([layer.u], lr=1.0)
    layer.u.grad = torch.linspace(-9, 9, 16)
    optimiser.step()
    assert layer.u.abs().max().item() == pytest.approx(bound)
    assert layer.u.min().item() == pytest.approx(-bound)
    free = IndRNN(16)
    with torch.no_grad():
        free.u.fill_(5)
    free.after_update()
    assert (free.u == 5).all()


def test_largest_gain_over_the_sequence_is_gamma():
    layer = IndRNN(4, t_max=50, gamma=2.0, dtype=torch.float64)
    with torch.no_grad():
        layer.u.fill_(9)
    layer.after_update()
    start = torch.full((1, 4), 1.0, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        layer.in_proj.weight.zero_()
    y, _ = layer(torch.zeros(1, 50, 4, dtype=torch.float64), start)
    (grad,) = torch.autograd.grad(y[0, -1].sum(), start)
    torch.testing.assert_close(grad, torch.full_like(grad, 2.0))


def test_layers_start_as_published_by_their_place_in_the_stack():
    torch.manual_seed(0)
    options = {"t_max": 100, "gamma": 2.0, "epsilon": 0.5}
    model = SequenceModel(1, 1, mixer="ind_rnn", d_model=500, n_layers=2, mixer_options=options)
    first, last = (m for m in model.modules() if isinstance(m, IndRNN))
    high, low = 2**0.01, 0.5**0.01
    for layer, least in ((first, 0.0), (last, low)):
        u = layer.u.detach().double()
        assert kstest((u - least) / (high - least), "uniform").pvalue > 0.01
        weight = layer.in_proj.weight
        assert weight.std().item() == pytest.approx((2 / 500) ** 0.5, rel=0.01)
        assert not layer.in_proj.bias.any()
    assert IndRNN(500).u.max() <= 1
    assert IndRNN(500).u.min() < 0.1


BAD = [
    ({"gamma": 0.5}, "IndRNN: gamma must be at least 1 and epsilon in .0, 1., got gamma=0.5"),
    ({"epsilon": 0.0}, "got gamma=2.0, epsilon=0.0"),
    ({"t_max": 0}, "IndRNN: t_max must be an integer of at least 1, got 0"),
    ({"nonlinearity": "gelu"}, "no IndRNN nonlinearity named 'gelu'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        IndRNN(4, **options)
