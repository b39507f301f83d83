"""GRU and LSTM: chrono and uniform starts, the refine gate, a learned start."""

import pytest
import torch
from plain_loop import check_equal, lead_out
from scipy.stats import kstest

from linrnn.errors import LinrnnError
from linrnn.mixers import GRU, LSTM
from linrnn.state import leaves


def refined_lstm(layer, x):
    """One step after another, with the paper's g as it is printed."""
    h = layer.h0 if layer.learn_initial else x.new_zeros(layer.d_state)
    c = layer.c0 if layer.learn_initial else x.new_zeros(layer.d_state)
    y = []
    for u in x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + layer.bias_hh_l0:
        r, f, z, o = (u + layer.weight_hh_l0 @ h).split(layer.d_state)
        r, f = r.sigmoid(), f.sigmoid()
        g = r * (1 - (1 - f) ** 2) + (1 - r) * f**2
        c = g * c + (1 - g) * z.tanh()
        h = o.sigmoid() * c.tanh()
        y.append(h)
    return lead_out(layer, torch.stack(y))


@pytest.mark.parametrize(
    "options",
    [{"gates": "refine"}, {"gates": "ur", "d_state": 5}, {"gates": "ur", "learn_initial": True}],
    ids=str,
)
def test_refined_lstm_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(LSTM(3, dtype=torch.float64, **options), refined_lstm)


def test_refine_gate_of_a_half_leaves_the_forget_gate():
    """Then it is an LSTM whose input gate is 1 - f: sigmoid(-a) with the rows of f negated."""
    refined, plain = LSTM(4, gates="refine", dtype=torch.float64), LSTM(4, dtype=torch.float64)
    with torch.no_grad():
        for parameter, other in zip(refined.parameters(), plain.parameters(), strict=True):
            parameter[:4] = 0
            other.copy_(parameter)
            other[:4] = -parameter[4:8]
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    torch.testing.assert_close(refined(x)[0], plain(x)[0])


def refined_gru(layer, x):
    """One step after another, with g as it is printed, for z."""
    h = layer.h0 if layer.learn_initial else x.new_zeros(layer.d_state)
    W, b = layer.weight_hh_l0.split(layer.d_state), layer.bias_hh_l0.split(layer.d_state)
    y = []
    for u in x @ layer.weight_ih_l0.T + layer.bias_ih_l0:
        r, z, n, s = u.split(layer.d_state)
        r, z, s = ((a + W[i] @ h + b[i]).sigmoid() for a, i in ((r, 0), (z, 1), (s, 3)))
        if layer.reset_gate == "after":
            n = (n + r * (W[2] @ h + b[2])).tanh()
        else:
            n = (n + W[2] @ (r * h) + b[2]).tanh()
        g = s * (1 - (1 - z) ** 2) + (1 - s) * z**2
        h = g * h + (1 - g) * n
        y.append(h)
    return lead_out(layer, torch.stack(y))


@pytest.mark.parametrize("reset_gate", ["after", "before"])
@pytest.mark.parametrize(
    "options",
    [{"gates": "refine"}, {"gates": "ur", "d_state": 5}, {"gates": "ur", "learn_initial": True}],
    ids=str,
)
def test_refined_gru_equals_a_transcription_split_and_whole_gradients_too(reset_gate, options):
    check_equal(GRU(3, reset_gate=reset_gate, dtype=torch.float64, **options), refined_gru)


def test_refine_gate_of_a_half_leaves_the_update_gate():
    refined, plain = GRU(4, gates="refine", dtype=torch.float64), GRU(4, dtype=torch.float64)
    with torch.no_grad():
        for parameter, other in zip(refined.parameters(), plain.parameters(), strict=True):
            parameter[12:] = 0
            other.copy_(parameter[:12])
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    torch.testing.assert_close(refined(x)[0], plain(x)[0])


def test_refine_gate_of_a_gru_starts_against_the_update_gate():
    _, z, _, s = biases(GRU(400, gates="ur"))
    torch.testing.assert_close(s, -z)
    assert kstest(z.sigmoid(), "uniform").pvalue > 0.01


def biases(layer):
    return (layer.bias_ih_l0 + layer.bias_hh_l0).detach().double().split(layer.d_state)


def test_memories_start_uniform_up_to_t_max():
    """In torch's GRU z keeps the state, so its bias is log U and not -log U."""
    torch.manual_seed(0)
    for layer in (LSTM(400, gates="chrono", t_max=200), GRU(400, gates="chrono", t_max=200)):
        memory = 1 + biases(layer)[1].exp()
        assert kstest((memory - 2) / 198, "uniform").pvalue > 0.01
    i, f, g, _ = biases(LSTM(400, gates="chrono", t_max=200))
    torch.testing.assert_close(i, -f)
    assert g.abs().max() < 2 * 400**-0.5


@pytest.mark.parametrize("gates", ["uniform", "ur"])
def test_forget_gates_start_uniform(gates):
    torch.manual_seed(0)
    first, f, *_ = biases(LSTM(400, gates=gates))
    assert kstest(f.sigmoid(), "uniform").pvalue > 0.01
    torch.testing.assert_close(first, -f)


@pytest.mark.parametrize("mixer", [GRU, LSTM])
def test_every_sequence_begins_from_what_was_learned(mixer):
    layer = mixer(3, learn_initial=True, dtype=torch.float64)
    learned = [layer.get_parameter(name) for name in layer.learned.names]
    with torch.no_grad():
        for p in learned:
            p.normal_()
    x, reset = torch.randn(1, 9, 3, dtype=torch.float64), torch.zeros(1, 9, dtype=torch.bool)
    reset[:, 4] = True
    y, _ = layer(x, reset=reset)
    parts = torch.cat([layer(part)[0] for part in x.split([4, 5], 1)], 1)
    torch.testing.assert_close(y, parts)
    plain = mixer(3, dtype=torch.float64)
    plain.load_state_dict(layer.state_dict(), strict=False)
    h, *c = (p.detach()[None] for p in learned)
    state = {"h": h, "c": c[0]} if c else h
    assert not any(part.any() for part in leaves(layer.init_state(1)))  # 0 stands for it
    torch.testing.assert_close(plain(x[:, :4], state)[0], y[:, :4])
    for grad in torch.autograd.grad(y[:, 4:].sum(), learned):  # of the second sequence alone
        assert grad.abs().min() > 0


BAD = [
    (LSTM, {"gates": "chrono"}, "LSTM: t_max must be at least 2 for gates='chrono', got None"),
    (LSTM, {"gates": "ur", "forget_bias": 1.0}, "LSTM: forget_bias must be None for gates='ur'"),
    (LSTM, {"gates": "ur", "bias": False}, "LSTM: bias must be True for gates='ur', got False"),
    (GRU, {"gates": "us"}, "no GRU gates named 'us'"),
    (GRU, {"gates": "ur", "bias": False}, "GRU: bias must be True for gates='ur', got False"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("mixer", "options", "message"), BAD)
def test_constructor_words_its_errors(mixer, options, message):
    with pytest.raises(LinrnnError, match=message):
        mixer(4, **options)
