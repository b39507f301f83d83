"""mLSTM against its equation without a stabiliser, and its memory against public code."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import MLSTM
from linrnn.mixers._families.mlstm import memory_spec, read_memory
from linrnn.state_spec import initial
from linrnn.testing import check_property


def scattered(layer):
    """Gates that differ from step to step."""
    for gate in (layer.igate, layer.fgate):
        torch.nn.init.normal_(gate.weight, std=0.5)
    for parameter in (layer.learnable_skip, layer.outnorm.weight):
        torch.nn.init.normal_(parameter)
    return layer


def transcription(layer, x):
    """One step and one head at a time, sums with the weights as they are."""
    H, inner = layer.n_heads, layer.d_inner
    d, y = inner // H, []
    S, n = x.new_zeros(H, d, d), x.new_zeros(H, d)
    u, z = (x @ layer.proj_up.weight.T).split(inner, -1)
    taps, padded = layer.conv1d.weight, F.pad(u, (0, 0, layer.d_conv - 1, 0))
    for t in range(len(x)):
        c = F.silu((padded[t : t + layer.d_conv] * taps.T).sum(0) + layer.conv1d.bias)
        q, k = (torch.block_diag(*w.weight).T @ c for w in (layer.q_proj, layer.k_proj))
        v = torch.block_diag(*layer.v_proj.weight).T @ u[t]
        i, f = (gate(torch.cat([q, k, v])) for gate in (layer.igate, layer.fgate))
        q, k, v = (part.view(H, d) for part in (q, k, v))
        f, i = f.sigmoid()[:, None], i.exp()[:, None]
        S = f[..., None] * S + (i * k)[..., None] * v[:, None]
        n = f * n + i * k
        read, weight = torch.einsum("hkv,hk->hv", S, q), (n * q).sum(-1).abs()
        h = read / weight.clamp(min=d**0.5)[:, None]
        h = h - h.mean(-1, keepdim=True)
        h = h / (h.square().mean(-1, keepdim=True) + layer.norm_eps).sqrt()
        h = layer.outnorm.weight * h.flatten() + layer.learnable_skip * c
        y.append(layer.proj_down.weight @ (h * F.silu(z[t])))
    return torch.stack(y)


def test_equals_a_transcription_split_and_whole_gradients_too():
    layer = scattered(MLSTM(6, n_heads=2, dtype=torch.float64))
    x = torch.randn(1, 20, 6, dtype=torch.float64, requires_grad=True)
    expected = transcription(layer, x[0])[None]
    first, state = layer(x[:, :7])
    y = torch.cat([first, layer(x[:, 7:], state)[0]], 1)
    allowed = {"rtol": 2e-5, "atol": 1e-6}  # what is divided by is 1e-6 larger
    torch.testing.assert_close(y, expected, **allowed)
    torch.testing.assert_close(layer(x)[0], y, rtol=1e-10, atol=1e-12)
    sources, weight = (x, *layer.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_memory_equals_the_native_code_of_mlstm_kernels(scale):
    """Preactivations up to 100, whose exponentials no float32 holds."""
    public = pytest.importorskip("mlstm_kernels.torch.recurrent.native_sequence")
    q, k, v = (torch.randn(2, 30, 3, 4, requires_grad=True) for _ in range(3))
    i, f = ((scale * torch.randn(2, 30, 3)).requires_grad_() for _ in range(2))
    start = initial("test", memory_spec(3, 4, 4), 2, q)
    h, state = read_memory(q, k, v, i, f, start, None)
    sources = (q, k, v, i, f)
    want, (S, n, m) = public.mlstm_recurrent_sequence__native_fw(
        *(part.transpose(1, 2) for part in sources), return_last_states=True
    )
    allowed = {"rtol": 2e-4, "atol": 2e-5}
    torch.testing.assert_close(h, want.transpose(1, 2), **allowed)
    torch.testing.assert_close(state["memory"], torch.cat([S, n[..., None]], -1), **allowed)
    torch.testing.assert_close(state["m"], m.view(2, 3), **allowed)
    weight = torch.randn_like(h)
    got = torch.autograd.grad((h * weight).sum(), sources)
    expected = torch.autograd.grad((want.transpose(1, 2) * weight).sum(), sources)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3 * b.abs().max().item())


def test_gates_that_are_far_apart_stay_finite():
    """Gates so far apart that weights underflow and overflow in every order."""
    q, k, v = (torch.randn(1, 12, 1, 2) for _ in range(3))
    i = torch.tensor([-1e4, 1e4, -1e30, 0, 1e30, 1] * 2).view(1, 12, 1).requires_grad_()
    f = torch.tensor([-300, -1e4, 1e30, -200, 0, -1e30] * 2).view(1, 12, 1).requires_grad_()
    h, state = read_memory(q, k, v, i, f, initial("test", memory_spec(1, 2, 2), 1, q), None)
    grads = torch.autograd.grad(h.sum() + state["memory"].sum(), (i, f))
    assert all(x.isfinite().all() for x in (h, *state.values(), *grads))


@pytest.mark.parametrize("normalize", [True, False])
def test_a_sigmoid_gate_writes_at_most_what_there_is(normalize):
    """A loop over the equation, of queries so large that what is divided by exceeds 1."""
    q, k, v = (torch.randn(1, 15, 2, 4, dtype=torch.float64) for _ in range(3))
    i, f = (torch.randn(1, 15, 2, dtype=torch.float64) for _ in range(2))
    q, gating = 5 * q, {"input_gate": "sigmoid", "normalize": normalize}
    h, last = read_memory(
        q, k, v, i, f, initial("t", memory_spec(2, 4, 4, **gating), 1, q), None, **gating
    )
    S, n = q.new_zeros(2, 4, 4), q.new_zeros(2, 4)
    for t in range(15):
        forget, write = f[0, t].sigmoid()[:, None], i[0, t].sigmoid()[:, None] * k[0, t]
        S = forget[..., None] * S + write[..., None] * v[0, t][:, None]
        n = forget * n + write
        read = torch.einsum("hkv,hk->hv", S, q[0, t]) / 2
        if normalize:
            read = read / ((n * q[0, t]).sum(-1, keepdim=True).abs() / 2).clamp(min=1)
        torch.testing.assert_close(h[0, t], read, rtol=2e-6, atol=1e-9)
    torch.testing.assert_close(last["memory"][0, ..., :4], S)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"input_gate": "sigmoid"},
        {"input_gate": "sigmoid", "normalize": False},
    ],
    ids=["normalized", "plain"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(MLSTM, **options))


def test_starts_as_published():
    layer = MLSTM(256)
    assert layer.d_inner == 512
    assert layer.proj_up.weight.std().item() == pytest.approx((0.4 / 256) ** 0.5, rel=0.02)
    assert layer.proj_down.weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert layer.fgate.bias.tolist() == [3, 4, 5, 6]
    assert not layer.igate.weight.any()
    assert not layer.fgate.weight.any()
    assert layer.learnable_skip.eq(1).all()
    assert MLSTM(6).d_inner == 16


BAD = [
    ({"normalize": False}, "normalize must be True with input_gate='exp', which has no bound"),
    ({"d_inner": 10}, "n_heads and qkv_block must divide d_inner=10, got n_heads=4"),
    ({"n_heads": 0}, "MLSTM: n_heads must be an integer of at least 1, got 0"),
    ({"d_inner": 4}, "must have at least 2 channels, whose mean is subtracted, got d_value=1"),
    ({"d_conv": 0}, "MLSTM: d_conv must be an integer of at least 1, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        MLSTM(8, **options)
