"""RWKV-7 against the layer of the package rwkv and the loop of fla, its start and errors."""

import pytest
import torch
import torch.nn.functional as F
from fla_naive import naive

from linrnn.block import Block
from linrnn.errors import ArgumentError
from linrnn.mixers import RWKV7
from linrnn.ops import delta_scan
from rwkv_package import busy, load


def published(layer, x, shift, memory, monkeypatch):
    """``(y, memory)`` of one sequence (time, d_model), by steps: their loop writes in place."""
    step = load(monkeypatch, seven=True).RWKV_x070_TMix_one
    H, N = layer.n_heads, layer.d_head
    r, w, k, v, a, g = layer.mu
    down_up = {
        n: (getattr(layer, n).down.weight.T, getattr(layer, n).up) for n in ("decay", "rate")
    }
    weights = (
        *(r, w, k, v, a, g),
        *(down_up["decay"][1].bias, down_up["decay"][0], down_up["decay"][1].weight.T),
        *(down_up["rate"][1].bias, down_up["rate"][0], down_up["rate"][1].weight.T),
        *(None, None, None),  # of layers after the first
        *(layer.gate.down.weight.T, layer.gate.up.weight.T),
        *(layer.k_k, layer.k_a, layer.r_k.flatten()),
        *(m.weight.T for m in (layer.receptance, layer.key, layer.value, layer.output)),
        *(layer.norm_weight, layer.norm_bias),
    )
    memory, out = memory.mT, []  # theirs is (d_value, d_key)
    for x_t in x:
        y, shift, memory, _ = step(0, H, N, x_t, shift, None, memory, *weights)
        out.append(y)
    return torch.stack(out), memory.mT


def test_equals_the_layer_of_the_package_with_its_state_and_gradients(monkeypatch):
    layer = busy(RWKV7(8, n_heads=2, decay_rank=3, rate_rank=5, gate_rank=4))
    x = torch.randn(40, 8, requires_grad=True)
    shift, memory = torch.randn(8), torch.randn(2, 4, 4)
    theirs, final = published(layer, x, shift, memory, monkeypatch)
    y, state = layer(x[None], {"memory": memory[None], "shift": shift[None, None]})
    torch.testing.assert_close(y[0], theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["memory"][0], final, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["shift"][0, 0], x[-1])
    wanted = [x, *layer.parameters()]
    grads = [torch.autograd.grad(z.square().mean(), wanted) for z in (y[0], theirs)]
    torch.testing.assert_close(*grads, rtol=2e-3, atol=1e-3)


def test_the_memory_equals_the_loop_of_fla():
    loop = naive("generalized_delta_rule/dplr/naive.py")
    torch.manual_seed(0)
    r, k, v, c = torch.randn(4, 2, 3, 40, 8)
    c, g = F.normalize(c, dim=-1), -torch.rand(2, 3, 40, 8)
    b, start = c * torch.rand(2, 3, 40, 8), torch.randn(2, 3, 8, 8)
    theirs, last = loop.dplr_recurrence(r * 8**0.5, k, v, -c, b, g, start)
    r, k, v, g, a, b = (z.transpose(1, 2) for z in (r, k, v, g, -c, b))
    o, final = delta_scan(r, k, v, None, g, start, a=a, b=b)
    torch.testing.assert_close(o.transpose(1, 2), theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=2e-5)


def test_golden_numbers():
    one, quarter = torch.ones(1, 3, 1, 1), torch.full((1, 3, 1, 1), 0.25)
    g = torch.full((1, 1), 0.5).log()
    o, _ = delta_scan(one, one, one, None, g, a=-one, b=quarter)
    assert o.flatten().tolist() == pytest.approx([1, 1.25, 1.3125])


GOLDEN = {
    0: {3: [0.075875, 0.070823, -0.015792, -0.084221]},
    1: {
        3: [0.088603, 0.057018, -0.040232, -0.091149],
        0: [0.079785, -0.064916, -0.134857, -0.049491],
    },
}


@pytest.mark.parametrize("place", GOLDEN)
def test_golden_numbers_of_the_whole_layer(place):
    """Numbers of the package's function: tensor n is half of sin(i n), in its arguments' order."""
    receives = ("v_first",) if place else ()
    ranks = dict.fromkeys(("decay_rank", "rate_rank", "gate_rank", "value_rank"), 2)
    layer = RWKV7(4, n_heads=2, **ranks, layer=place, n_layers=2, receives=receives).double()
    D, R = (4,), (2,)
    low_rank = [D, D + R, R + D]
    shapes = [*[D] * 6, *low_rank * 3, D + R, R + D, D, D, D, *[D + D] * 4, D, D]
    full = (18, 19, 25)  # k_k, k_a, and the weight of the norm
    n = {i: (1.0 if i in full else 0.5) * wave(*s, rate=i) for i, s in enumerate(shapes, 1)}
    maps = {"receptance": 21, "key": 22, "value": 23, "output": 24}
    weights = {"mu": torch.stack([n[i] for i in range(1, 7)]), "norm_weight": n[25]}
    weights |= {"norm_bias": n[26], "k_k": n[18], "k_a": n[19], "r_k": n[20].view(2, 2)}
    weights |= {f"{name}.weight": n[i].T for name, i in maps.items()}
    first = {"decay": 7, "rate": 10, **({"residual": 13} if place else {})}
    weights |= {f"{name}.up.bias": n[i] for name, i in first.items()}
    down = {**{name: i + 1 for name, i in first.items()}, "gate": 16}
    weights |= {f"{name}.down.weight": n[i].T for name, i in down.items()}
    weights |= {f"{name}.up.weight": n[i + 1].T for name, i in down.items()}
    layer.load_state_dict(weights)
    signals = {"v_first": wave(1, 4, 4, rate=0.71)} if place else None
    y = layer(wave(1, 4, 4, rate=0.37), signals=signals)[0][0]
    for t, expected in GOLDEN[place].items():
        assert y[t].tolist() == pytest.approx(expected, abs=2e-6)


def wave(*shape, rate):
    count = torch.Size(shape).numel()
    return torch.sin(rate * torch.arange(1, count + 1, dtype=torch.float64)).view(shape)


def test_a_later_layer_starts_as_published():
    layer = RWKV7(64, n_heads=2, layer=1, n_layers=3, init="published", receives=("v_first",))
    place = torch.arange(64.0) / 63
    torch.testing.assert_close(layer.residual.up.bias.detach(), 0.73 - 0.4 * (place - 0.5))
    assert not layer.residual.down.weight.any()
    up = layer.residual.up.weight.detach()
    torch.testing.assert_close(up.T @ up, 0.01 * torch.eye(layer.value_rank), rtol=0, atol=1e-6)
    assert RWKV7(768).value_rank == 32 * round(1.7 * 768**0.5 / 32)


def test_starts_as_published_by_its_place_in_the_stack():
    layer = RWKV7(64, n_heads=2, layer=1, n_layers=3, init="published")
    part, place = torch.arange(64.0) / 64, torch.arange(64.0) / 63
    powers = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
    mu = torch.stack([1 - part ** (power * 2 / 3) for power in powers])
    torch.testing.assert_close(layer.mu.detach(), mu)
    s = torch.linspace(-1, 1, 32).repeat(2)
    turn = s * s.abs()
    decay = -6 + 6 * place ** (1 + 0.5**0.3) + 0.5 + 2.5 * turn
    torch.testing.assert_close(layer.decay.up.bias.detach(), decay, rtol=1e-5, atol=1e-5)
    rate = -0.19 + 0.3 * turn + 0.4 * (place - 0.5)
    torch.testing.assert_close(layer.rate.up.bias.detach(), rate, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.k_k.detach(), 0.71 - 0.1 * (place - 0.5))
    for linear, size in ((layer.receptance, 0.5), (layer.key, 0.05), (layer.value, 0.5)):
        assert linear.weight.abs().max().item() == pytest.approx(size / 8, rel=0.02)
    for part in (layer.decay, layer.rate, layer.gate):
        w = part.up.weight.detach()
        torch.testing.assert_close(w.T @ w, 0.01 * torch.eye(w.shape[1]), rtol=0, atol=1e-6)
        assert not part.down.weight.any()
    assert not layer.output.weight.any()


def test_bottlenecks_have_the_published_widths():
    layer = RWKV7(768)
    assert (layer.decay_rank, layer.rate_rank, layer.gate_rank) == (64, 64, 128)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="gate_rank"):
        RWKV7(8, gate_rank=0)


def test_starts_as_the_training_program_does():
    layer = RWKV7(64, n_heads=2, layer=1, n_layers=3, init="trainer", receives=("v_first",))
    for linear, gain in ((layer.receptance, 1.0), (layer.key, 0.1), (layer.value, 1.0)):
        w = linear.weight.detach()
        torch.testing.assert_close(w.T @ w, gain**2 * torch.eye(64), rtol=0, atol=1e-5)
    assert not any(w.any() for w in (layer.output.weight, layer.residual.down.weight))
    torch.manual_seed(0)
    published = RWKV7(64, n_heads=2, layer=1, n_layers=3, init="published", receives=("v_first",))
    for name, p in published.named_parameters():
        if p.ndim == 1:
            torch.testing.assert_close(layer.get_parameter(name), p)
    block = Block(layer, kind="relu_mix", norm="layer", layer=1, n_layers=3)
    assert not block.relu_mix.value.weight.any()
