"""Mamba against two independent implementations and a loop from the equations alone."""

from functools import partial
from math import exp, log

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest

from linrnn.errors import ArgumentError, ShapeError, UnknownNameError
from linrnn.mixers import S4D, Mamba
from linrnn.testing import check_property

F64 = torch.float64


def numpy_mamba(layer, x, h, past):
    """One step, one sequence and one channel at a time in float64; biases and both rules for B."""
    p = {n: v.detach().double().numpy() for n, v in layer.named_parameters()}
    R, N, W = layer.dt_rank, layer.d_state, layer.d_conv

    def silu(v):
        return v / (1 + np.exp(-v))

    def normed(v, name):
        if layer.bcdt_norm == "none":
            return v
        root = np.sqrt(np.mean(np.square(v)) + layer.norm_eps)
        return p.get(f"{name}_layernorm.weight", 1) * np.asarray(v) / root

    y = np.empty_like(x)
    h, past = h.copy(), past.copy()
    for i in range(len(x)):
        window = list(past[i])
        for t in range(x.shape[1]):
            xz = p["in_proj.weight"] @ x[i, t] + p.get("in_proj.bias", 0)
            u, z = np.split(xz, 2)
            window = [*window, u]
            taps = p["conv1d.weight"]
            s = sum(taps[:, W - 1 - j] * window[-1 - j] for j in range(W))
            s = silu(s + p.get("conv1d.bias", 0))
            window = window[1:]
            chosen = list(p["x_proj.weight"] @ s) if "x_proj.weight" in p else []
            steps = p.get("dt_bias")
            if steps is None:
                r, chosen = normed(chosen[:R], "dt"), chosen[R:]
                steps = p["dt_proj.weight"] @ r + p["dt_proj.bias"]
            B = p["B"] if "B" in p else normed(chosen[:N], "b")
            C = p["C"] if "C" in p else normed(chosen[-N:], "c")
            dt = np.log1p(np.exp(steps))[:, None]
            A = -np.exp(p["A_log"])
            w = np.expm1(dt * A) / A if layer.b_disc == "zoh" else dt
            h[i] = np.exp(dt * A) * h[i] + w * np.asarray(B) * s[:, None]
            out = (h[i] @ C + p["D"] * s) * silu(z)
            y[i, t] = p["out_proj.weight"] @ out + p.get("out_proj.bias", 0)
        past[i] = np.reshape(window, past[i].shape)
    return y, h, past


OPTIONS = [
    {},
    {"b_disc": "zoh"},
    {"d_state": 3, "d_conv": 1, "expand": 1, "dt_rank": 2},
    {"d_conv": 2, "conv_bias": False, "bias": True, "d_state": 1},
    {"selective_dt": False, "d_state": 3},
    {"selective_B": False, "d_state": 3, "b_disc": "zoh"},
    {"selective_C": False, "d_state": 3},
    {"selective_B": False, "selective_C": False, "d_state": 3},
    {"bcdt_norm": "rms", "dt_rank": 2, "norm_eps": 0.1},
    {"bcdt_norm": "weighted", "dt_rank": 3, "selective_B": False},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_forward_equals_a_transcription_in_numpy(options):
    layer = Mamba(5, dtype=F64, **options)
    if layer.B is not None:  # else all ones
        torch.nn.init.normal_(layer.B)
    for name, weight in layer.named_parameters():
        if "layernorm" in name:  # else all ones
            torch.nn.init.normal_(weight)
    x = torch.randn(2, 20, 5, dtype=F64)
    state = {n: torch.randn_like(v) for n, v in layer.init_state(2).items()}
    y, last = layer(x, state)
    expected = numpy_mamba(layer, x.numpy(), state["h"].numpy(), state["conv"].numpy())
    for got, want in zip((y, last["h"], last["conv"]), expected, strict=True):
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-11, atol=1e-11)


def transformers_mixer(layer, **options):
    """The layer of the transformers package, with the same weights."""
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    config = modeling.MambaConfig(
        hidden_size=layer.d_model, state_size=layer.d_state, num_hidden_layers=1, **options
    )
    peer = modeling.MambaMixer(config, layer_idx=0).double().eval()
    weights = layer.state_dict()
    weights["conv1d.weight"] = weights["conv1d.weight"][:, None]
    peer.load_state_dict(weights)  # the same names, all of them
    return peer, config


def test_forward_and_gradients_equal_transformers():
    layer = Mamba(6, dtype=F64)
    peer, _ = transformers_mixer(layer)
    x = torch.randn(2, 17, 6, dtype=F64, requires_grad=True)
    ours, theirs = layer(x)[0], peer(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)  # it computes A in float32
    into = torch.randn_like(ours)
    peers = dict(peer.named_parameters())
    names = [n for n, _ in layer.named_parameters()]
    got = torch.autograd.grad(ours, [x, *layer.parameters()], into)
    expected = torch.autograd.grad(theirs, [x, *(peers[n] for n in names)], into)
    for name, g, e in zip(["x", *names], got, expected, strict=True):
        torch.testing.assert_close(g, e.reshape(g.shape), rtol=1e-5, atol=1e-6, msg=name)


def test_steps_equal_those_of_transformers():
    cache_utils = pytest.importorskip("transformers.cache_utils")
    layer = Mamba(6, dtype=F64)
    peer, config = transformers_mixer(layer)
    x = torch.randn(2, 9, 6, dtype=F64)
    cache = cache_utils.DynamicCache(config=config)
    _, state = layer(x[:, :5])
    peer(x[:, :5], cache_params=cache)
    for t in range(5, 9):
        y, state = layer.step(x[:, t], state)
        expected = peer(x[:, t : t + 1], cache_params=cache)[:, 0]
        torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("pscan", [True, False])
def test_forward_equals_mambapy(pscan):
    mambapy = pytest.importorskip("mambapy.mamba")
    layer = Mamba(6, d_state=4)
    peer = mambapy.MambaBlock(mambapy.MambaConfig(d_model=6, n_layers=1, d_state=4, pscan=pscan))
    weights = layer.state_dict()
    weights["conv1d.weight"] = weights["conv1d.weight"][:, None]
    peer.load_state_dict(weights)
    x = torch.randn(2, 33, 6)
    torch.testing.assert_close(layer(x)[0], peer(x), rtol=1e-5, atol=1e-6)


def test_constant_step_and_weights_are_s4d_real():
    """Without selection each channel is a convolution with ``sum_n C B dt exp(dt A k)``."""
    layer = Mamba(2, d_state=4, d_conv=1, dtype=F64)
    with torch.no_grad():
        layer.x_proj.weight.zero_()  # so that dt = softplus(b_dt), and B and C are given below
        layer.dt_proj.weight.zero_()
    B, C = torch.randn(4, dtype=F64), torch.randn(4, dtype=F64)
    layer.x_proj.register_forward_hook(
        lambda *args: torch.cat(
            [args[2][..., :1], B.expand_as(args[2][..., 1:5]), C.expand_as(args[2][..., 5:])], -1
        )
    )
    x = torch.randn(1, 30, 2, dtype=F64)
    u, z = layer.in_proj(x).chunk(2, -1)
    s = F.silu(u * layer.conv1d.weight[:, 0] + layer.conv1d.bias)
    dt, A = F.softplus(layer.dt_proj.bias)[:, None], -layer.A_log.exp()
    kernel = torch.stack([((dt * A * k).exp() * dt * B * C).sum(1) for k in range(30)])
    y = torch.stack([(kernel[: t + 1].flip(0) * s[0, : t + 1]).sum(0) for t in range(30)])
    expected = layer.out_proj((y + layer.D * s[0]) * F.silu(z[0]))
    torch.testing.assert_close(layer(x)[0][0], expected, rtol=1e-10, atol=1e-12)


def test_initial_step_sizes_are_log_uniform():
    layer = Mamba(2, expand=5000, d_state=1)
    dt = F.softplus(layer.dt_proj.bias.double()).detach().numpy()
    assert dt.min() >= 1e-3 * 0.999
    assert dt.max() <= 0.1 * 1.001
    assert kstest(np.log(dt / 1e-3) / log(100), "uniform").pvalue > 1e-3


def test_initial_parameters():
    layer = Mamba(64, dt_rank=25, dt_min=1e-6, dt_max=1e-6, dt_floor=0.02)
    torch.testing.assert_close(F.softplus(layer.dt_proj.bias), torch.full((128,), 0.02))
    torch.testing.assert_close(-layer.A_log.exp(), -torch.arange(1.0, 17).expand(128, 16))
    assert layer.D.eq(1).all()
    weight = layer.dt_proj.weight
    assert weight.abs().max() <= 0.2  # 25 ** -0.5
    assert weight.var().item() == pytest.approx(0.2**2 / 3, rel=0.1)
    assert Mamba(33).dt_rank == 3


def test_no_weight_decay_on_the_recurrence():
    layer, constant = Mamba(4), Mamba(4, selective_dt=False, selective_B=False)
    names = {n for one in (layer, constant) for n, _ in one.named_parameters()}
    assert set(layer.recurrent_parameters) <= names


def test_state_is_float32_for_half_precision():
    state = Mamba(4, dtype=torch.bfloat16).init_state(3)
    assert state["h"].shape == (3, 8, 16)
    assert state["conv"].shape == (3, 3, 8)
    assert {v.dtype for v in state.values()} == {torch.float32}


def test_an_idle_input_lets_the_state_decay_at_the_stated_rate():
    layer = Mamba(4, d_state=2, d_conv=1, conv_bias=False, dtype=F64)
    state = layer.init_state(1)
    state["h"] += 1
    _, after = layer(torch.zeros(1, 10, 4, dtype=F64), state)
    dt = F.softplus(layer.dt_proj.bias)
    expected = (-10 * dt[:, None] * torch.tensor([1.0, 2.0], dtype=F64)).exp()
    torch.testing.assert_close(after["h"][0], expected)
    assert exp(-1) < after["h"].max() < 1


BAD = [
    ({"d_state": 0}, ArgumentError, "d_state must be an integer of at least 1, got 0"),
    ({"d_conv": 0}, ArgumentError, "d_conv must be an integer of at least 1, got 0"),
    ({"expand": 1.5}, ArgumentError, "expand must be an integer of at least 1, got 1.5"),
    ({"dt_rank": 0}, ArgumentError, "dt_rank must be an integer of at least 1, got 0"),
    ({"dt_min": 0.2}, ArgumentError, r"dt_min=0.2, dt_max=0.1"),
    ({"dt_min": 0.0}, ArgumentError, "0 < dt_min <= dt_max"),
    ({"dt_floor": 0.0}, ArgumentError, "dt_floor must be positive, got 0.0"),
    ({"bcdt_norm": "layer"}, UnknownNameError, "no Mamba bcdt_norm named 'layer'"),
    ({"norm_eps": 0.0}, ArgumentError, "norm_eps must be positive and finite, got 0.0"),
    ({"b_disc": "zho"}, UnknownNameError, "no Mamba b_disc named 'zho'. Did you mean 'zoh'?"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        Mamba(**{"d_model": 4, **options})


@pytest.mark.unchecked
def test_a_state_of_another_width_is_refused():
    state = Mamba(4, d_state=8).init_state(1)
    with pytest.raises(ShapeError, match=r"state\['h'\] must have shape"):
        Mamba(4)(torch.ones(1, 3, 4), state)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_streaming_steps_equal_a_sequence(options, dtype):
    """Without gradients a few sequences take a native step; more take the parts one by one."""
    for batch, width in ((1, 33), (3, 5), (17, 5)):
        layer = Mamba(width, dtype=dtype, **options)
        x, ys = torch.randn(batch, 7, width, dtype=dtype), []
        state = {n: torch.randn_like(v) for n, v in layer.init_state(batch).items()}
        expected, last = layer(x, state)
        with torch.no_grad():
            for x_t in x.transpose(0, 1).contiguous():  # rows side by side
                before = {n: v.clone() for n, v in state.items()}
                y, after = layer.step(x_t, state)
                assert all(torch.equal(state[n], before[n]) for n in before)
                ys.append(y)
                state = after
        tolerance = {"rtol": 1e-10, "atol": 1e-11} if dtype == F64 else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(torch.stack(ys, 1), expected.detach(), **tolerance)
        for name, value in last.items():
            torch.testing.assert_close(state[name], value.detach(), **tolerance)


def test_a_step_takes_any_layout_and_says_what_does_not_fit():
    layer, x = Mamba(4), torch.randn(4, 2).T
    with torch.no_grad():
        state = layer(torch.randn(2, 3, 4))[1]
        expected, _ = layer.step(x.contiguous(), state)
        torch.testing.assert_close(layer.step(x, state)[0], expected)
        strided = {n: v.transpose(0, 1).contiguous().transpose(0, 1) for n, v in state.items()}
        torch.testing.assert_close(layer.step(x, strided)[0], expected)
        shape = r"\(batch=2, d_inner=8, d_state=16\)"
        with pytest.raises(ShapeError, match=rf"state\['h'\] must have shape {shape}"):
            layer.step(x, {**state, "h": state["h"][:1]})
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(layer.step(x, state)[0], expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("b_disc", ["euler", "zoh"])
def test_what_chooses_nothing_is_real_s4d_of_many_channels(b_disc):
    """The layer's recurrence without selection, as systems of S4D that have B and C in common."""
    chosen = {f"selective_{name}": False for name in ("dt", "B", "C")}
    layer = Mamba(4, d_state=3, b_disc=b_disc, dtype=torch.float64, **chosen)
    assert layer.x_proj is layer.dt_proj is None
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    u, z = layer.in_proj(x).chunk(2, -1)
    s = layer.conv1d(u, torch.zeros(2, 3, 8, dtype=torch.float64), None)[0]
    dt = torch.nn.functional.softplus(layer.dt_bias)
    other = S4D(8, d_state=3, init="real", separate_B=True, dtype=torch.float64)
    gain = dt[:, None] * -layer.A_log.exp() / torch.expm1(dt[:, None] * -layer.A_log.exp())
    parameters = {
        "A_log": layer.A_log,
        "log_dt": dt.log(),
        "D": layer.D,
        "B_re": layer.B * (gain if b_disc == "euler" else torch.ones_like(gain)),
        "C_re": layer.C.expand(8, -1),
    }
    y = torch.func.functional_call(other, parameters, (s,))[0]
    expected = layer.out_proj(y * torch.nn.functional.silu(z))
    got = layer(x)[0]
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)
    names = ["A_log", "dt_bias", "B", "C"]
    sources = [layer.get_parameter(name) for name in names]
    found = torch.autograd.grad(got.square().sum(), sources, retain_graph=True)
    wanted = torch.autograd.grad(expected.square().sum(), sources)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("norm", ["rms", "weighted"])
@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
def test_laws_hold_with_norms(norm, law):
    check_property(law, partial(Mamba, bcdt_norm=norm, dt_rank=2))


@pytest.mark.parametrize("norm", ["rms", "weighted"])
def test_norms_make_the_step_sizes_bounded(norm):
    """A vector of R^n with a norm has at most the length sqrt(n), whatever is read."""
    layer = Mamba(4, bcdt_norm=norm, dt_rank=2, dtype=F64)
    s = 1e6 * torch.randn(2, 5, 8, dtype=F64)
    steps, B, C = layer._chosen(s)
    assert B.norm(dim=-1).max() <= 4
    assert C.norm(dim=-1).max() <= 4
    assert steps.abs().max() <= layer.dt_proj.weight.norm(dim=1).max() * 2**0.5
