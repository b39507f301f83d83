"""MesaNet against golden numbers, the exact solve of fla, a loop, and what its solver promises."""

import pytest
import torch
import torch.nn.functional as F
from fixture_f import BETA, DECAY, K, Q, V, near
from fla_naive import naive
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import MesaNet
from linrnn.nn import l2_normalise
from linrnn.ops import outer_scan
from linrnn.ops.matrix.ridge_solve import ridge_solve

F64 = torch.float64
RIDGE = torch.tensor([[1.0, 1.5]], dtype=F64)
NOTHING = torch.zeros(1, 1, 2, 2, dtype=F64)


def test_reads_give_the_golden_numbers():
    x, residual, rounds = ridge_solve(Q, K, BETA, DECAY.log(), RIDGE, NOTHING, None, 30)
    o, _ = outer_scan(x, K, BETA[..., None] * V, DECAY.log())
    near(o, 0.333333, 0.666667, 0.895801, -0.385692, 1.444072, -0.180462, 0.740759, 0.597247)
    assert residual.max() < 1e-15
    assert rounds.flatten().tolist() == [1, 2, 2, 2]


def test_equals_the_exact_solve_of_fla():
    exact = naive("mesa_net/naive.py").naive_mesa_net_exact
    torch.manual_seed(0)
    q, k = (F.normalize(torch.randn(2, 40, 3, 8), dim=-1) for _ in range(2))
    v, beta, ridge = torch.randn(2, 40, 3, 8), torch.rand(2, 40, 3), 0.25 + torch.rand(3, 8)
    g = F.logsigmoid(3 + torch.randn(2, 40, 3))
    expected, *_ = exact(q, k, v, g, ridge, beta)
    x, *_ = ridge_solve(q, k, beta, g, ridge, torch.zeros(2, 3, 8, 8), None, 30)
    o, _ = outer_scan(x, k, beta[..., None] * v, g)
    torch.testing.assert_close(o, expected, rtol=1e-4, atol=1e-5)


def transcription(layer, x):
    """One system after another, each solved by elimination."""
    N, M, H = layer.d_key, layer.d_value, layer.n_heads
    taps = layer.qk.conv1d.weight
    z = F.pad(layer.qk.heads.proj(x), (0, 0, taps.shape[1] - 1, 0))
    z = F.silu((z.unfold(0, taps.shape[1], 1) * taps).sum(-1))
    ridge = layer.ridge_min + F.softplus(layer.ridge)
    sums, writes = torch.zeros(H, N, N, dtype=F64), torch.zeros(H, N, M, dtype=F64)
    outputs = []
    for row, u in zip(z, x, strict=True):
        q, k = (l2_normalise(part.view(H, N)) for part in row.chunk(2))
        v = layer.v_proj(u).view(H, M)
        a, beta = layer.gates(u).sigmoid().chunk(2)
        sums = a[:, None, None] * sums + beta[:, None, None] * k[:, :, None] * k[:, None]
        writes = a[:, None, None] * writes + beta[:, None, None] * k[:, :, None] * v[:, None]
        solution = torch.linalg.solve(sums + torch.diag_embed(ridge), q)
        o = torch.einsum("hn,hnm->hm", solution, writes)
        o = F.rms_norm(o, (M,), None, layer.norm_eps)
        outputs.append(layer.out.out_proj(o.flatten()))
    return torch.stack(outputs)


@pytest.mark.parametrize("options", [{}, {"d_value": 5, "ridge_min": 0.5}], ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(MesaNet(6, n_heads=2, dtype=F64, **options), transcription)


def test_gradients_are_those_of_elimination_to_the_second_order():
    torch.manual_seed(2)
    root = torch.randn(1, 1, 2, 2, dtype=F64)
    inputs = (Q, K, BETA, DECAY.log(), RIDGE, root @ root.mT)
    inputs = tuple(z.clone().requires_grad_() for z in inputs)

    def solve(*arguments):
        return ridge_solve(*arguments, None, 4)[0]

    assert torch.autograd.gradcheck(solve, inputs)
    assert torch.autograd.gradgradcheck(solve, inputs)


def test_fewer_iterations_leave_a_residual_and_a_query_of_zeros_none():
    torch.manual_seed(3)
    q, k = torch.randn(1, 20, 1, 8, dtype=F64), torch.randn(1, 20, 1, 8, dtype=F64)
    q[:, 10] = 0
    beta, start = torch.ones(1, 20, 1, dtype=F64), torch.zeros(1, 1, 8, 8, dtype=F64)
    ridge = 0.01 * torch.ones(1, 8, dtype=F64)
    results = [ridge_solve(q, k, beta, 0 * beta, ridge, start, None, n) for n in (2, 40)]
    (_, rough, few), (x, fine, many) = results
    assert rough[:, 15:].min() > 1e-3
    assert few.max() == 2
    assert fine.max() < 1e-14
    assert many.max() <= 20
    assert x[:, 10].eq(0).all()
    assert many[:, 10].eq(0).all()


def test_sizes_and_starts_are_the_published_ones():
    layer = MesaNet(2048, device="meta")
    assert (layer.n_heads, layer.d_key, layer.d_value, layer.iterations) == (16, 128, 128, 30)
    ridge = MesaNet(8).ridge
    torch.testing.assert_close(0.25 + F.softplus(ridge), torch.ones_like(ridge))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "MesaNet: iterations must be an integer of at least 1, got 0"),
        ({"ridge_min": 0.0}, "MesaNet: ridge_min must be positive and finite, got 0.0"),
        ({"d_conv": None, "conv_bias": True}, "MesaNet: conv_bias must be False without"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        MesaNet(8, **options)
