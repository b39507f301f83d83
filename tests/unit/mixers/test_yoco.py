"""YOCO's cross decoder: its equation written out, one cache for all layers, words for errors."""

import pytest
import torch

from linrnn import SequenceModel
from linrnn.errors import LinrnnError
from linrnn.mixers import YOCO, Attention, RetNet
from linrnn.state import leaves

D, KEYS = 8, ("key", "value")


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_a_layer_alone_is_attention():
    layer = YOCO(D, n_heads=2, n_kv_heads=1, dtype=torch.float64)
    other = Attention(D, n_heads=2, n_kv_heads=1, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    x = draw(2, 9, D)
    torch.testing.assert_close(layer(x)[0], other(x)[0])


def test_later_layers_look_at_the_keys_of_the_first():
    layer = YOCO(D, n_heads=2, d_rotary=0, receives=KEYS, dtype=torch.float64)
    x, k, v = draw(2, 9, D), draw(2, 9, 2, 8), draw(2, 9, 2, 8)
    q = layer.q_proj(x).unflatten(-1, (2, 8))
    scores = torch.einsum("bthk,bshk->bhts", q, k) / 8**0.5
    scores = scores.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
    o = torch.einsum("bhts,bshv->bthv", scores.softmax(-1), v).flatten(2)
    y, state, outgoing = layer(x, signals={"key": k, "value": v})
    torch.testing.assert_close(y, layer.o_proj(o))
    assert outgoing == {}
    assert list(state) == ["position"]


LOWER = {"retnet": {"decay": "input", "turns": "rotary"}, "attention": {"window": 4}}


def model(lower="retnet"):
    return SequenceModel(
        *(3, 4),
        mixer=(lower, lower, "yoco", "yoco", "yoco"),
        mixer_options={lower: LOWER[lower]},
        **{"d_model": D, "n_layers": 5, "norm": "rms", "block": "swiglu", "pool": "none"},
        dtype=torch.float64,
    )


@pytest.mark.parametrize("lower", ["retnet", "attention"])
def test_the_cache_is_held_once_and_gives_the_same_in_steps_and_pieces(lower):
    made, x = model(lower), draw(2, 12, 3)
    y, last = made(x)
    held = [sorted(state) for state in last["layers"][2:]]
    assert held == [["k", "position", "v"], ["position"], ["position"]]
    assert last["layers"][2]["k"].shape[1] == 12
    first, state = made(x[:, :5])
    second, state = made(x[:, 5:5], state)
    second, state = made(x[:, 5:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), y)
    stepped, outputs = made.init_state(2), []
    for x_t in x.unbind(1):
        y_t, stepped = made.step(x_t, stepped)
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), y)
    for got, expected in zip(leaves(stepped), leaves(last), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_reset_hides_the_cache_from_all_layers():
    made, x = model(), draw(2, 12, 3)
    reset = torch.zeros(2, 12, dtype=torch.bool)
    reset[1, 7] = True
    y, state = made(x, reset=reset)
    torch.testing.assert_close(y[1:, 7:], made(x[1:, 7:])[0])
    again = draw(2, 3, 3)
    z, _ = made(again, state)
    torch.testing.assert_close(z[1:], made(torch.cat([x[1:, 7:], again[1:]], 1))[0][:, 5:])


def test_gated_retention_forgets_by_its_input():
    layer = RetNet(D, n_heads=2, decay="input", turns="rotary", dtype=torch.float64)
    x = draw(1, 6, D)
    q, k, v = (z[0] for z in layer.heads(x))  # (6, 2, size)
    gamma = layer.decay_proj(x)[0].sigmoid() ** (1 / 16)
    place = torch.arange(6, dtype=torch.float64)[:, None, None]
    turn = torch.exp(1j * place * 10_000.0 ** (-torch.arange(0, 4, 2, dtype=torch.float64) / 4))
    q, k = (torch.view_as_complex(z.unflatten(-1, (-1, 2))) * turn for z in (q, k))
    q, k = (torch.view_as_real(z).flatten(-2) for z in (q, k))
    memory, outputs = torch.zeros(2, 4, 8, dtype=torch.float64), []
    for t in range(6):
        memory = gamma[t, :, None, None] * memory + torch.einsum("hk,hv->hkv", k[t] / 2, v[t])
        outputs.append(torch.einsum("hk,hkv->hv", q[t], memory))
    expected = layer.out(torch.stack(outputs)[None], x)
    torch.testing.assert_close(layer(x)[0], expected)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: YOCO(D, n_heads=0), "YOCO: n_heads must be an integer of at least 1, got 0"),
        (lambda: YOCO(D, n_heads=4, n_kv_heads=3), "n_kv_heads must divide n_heads=4, got 3"),
        (lambda: YOCO(D, receives=("bound",)), "YOCO: receives must be of"),
        (
            lambda: YOCO(D, receives=KEYS)(
                torch.zeros(1, 5, D), signals=dict.fromkeys(KEYS, torch.zeros(1, 4, 1, 8))
            ),
            r"signals\['key'\] must have at least 5 entries, .* got 4",
        ),
        (lambda: RetNet(D, decay="none"), "decay"),
    ],
)
def test_words_its_errors(attempt, message):
    with pytest.raises(LinrnnError, match=message):
        attempt()
