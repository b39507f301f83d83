"""The Compressive Transformer: a double loop, Transformer-XL at both of its ends, and its loss."""

from functools import partial

import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.learn import Batch, Loop, build
from linrnn.mixers import CompressiveTransformer, TransformerXL, added_losses
from linrnn.testing import check_property

SMALL = {"segment": 4, "memory": 8, "compressed": 3, "ratio": 2, "n_heads": 2, "d_head": 3}


KINDS = ("conv", "dilated", "mean", "max", "used")
every = pytest.mark.parametrize("compression", KINDS)


def make(cls=CompressiveTransformer, d_model=6, **options):
    torch.manual_seed(0)
    known = SMALL if cls is CompressiveTransformer else {"segment": 4, "n_heads": 2, "d_head": 3}
    layer = cls(d_model, dtype=torch.float64, **{**known, **options})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def noise(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def few(layer, o, use=None):
    """f of rows (n, D), one after the other; ``use`` is what each was looked at."""
    ratio = layer.ratio
    if layer.compression == "used":
        best = sorted(range(len(o)), key=lambda i: -use[i])[: len(o) // ratio]
        return o[sorted(best)]
    if layer.compression == "dilated":
        firsts, zero = range(1 - ratio, len(o) + 1 - ratio, ratio), torch.zeros_like(o[0])
        rows = [[o[s] if s >= 0 else zero for s in range(i, i + 2 * ratio, 2)] for i in firsts]
        return torch.stack([layer.fewer(torch.cat(row)) for row in rows])
    groups = o.split(ratio)
    if layer.compression == "conv":
        return torch.stack([layer.fewer(torch.cat(list(g))) for g in groups])
    return torch.stack([g.mean(0) if layer.compression == "mean" else g.amax(0) for g in groups])


def transcription(layer, x):
    """One row (T, D), by lists of rows and a loop over queries and keys: outputs, and the loss."""
    H, K, n, D = layer.n_heads, layer.d_head, layer.segment, layer.d_model
    place, (w_q, w_k, w_v) = layer.place, (w.unflatten(0, (H, K)) for w in layer.heads.rows())
    turn = place.proj.weight.unflatten(0, (H, K))
    omega = 10_000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    m, c, ys, losses, use = x[:0], x[:0], [], [], []
    for part in x.split(n):
        rows = torch.cat([c, m, part])
        use += [0.0] * (len(m) - len(use))
        for i, query in enumerate(part):
            last, heads = len(c) + len(m) + i, []
            for h in range(H):
                q, scores = w_q[h] @ query, []
                for s in range(last + 1):
                    angle = (last - s) * omega
                    R = turn[h] @ torch.cat([angle.sin(), angle.cos()])
                    score = (q + place.u[h]) @ (w_k[h] @ rows[s]) + (q + place.w[h]) @ R
                    scores.append(score * K**-0.5)
                weights = torch.stack(scores).softmax(0)
                for s in range(len(m)):
                    use[s] += weights[len(c) + s].item()
                heads.append(weights @ (rows[: last + 1] @ w_v[h].T))
            ys.append(layer.o_proj(torch.cat(heads)))
        m = torch.cat([m, part])
        if len(part) == n and len(m) > layer.memory:
            o, m, gone, use = m[:n], m[n:], use[:n], use[n:]
            new = few(layer, o, gone + [0.0] * (n - len(gone)))
            c = torch.cat([c, new])[-layer.compressed :]
            q = torch.einsum("td,hkd->htk", part, w_q)
            seen = [
                (q @ (z @ w_k.mT).mT * K**-0.5).softmax(-1) @ (z @ w_v.mT)
                for z in (o.detach(), few(layer, o.detach(), gone))
            ]
            losses.append((seen[0] - seen[1]).square().mean())
    return torch.stack(ys), sum(losses) * n / len(x)


@every
def test_equals_a_loop_over_queries_and_rows(compression):
    layer, x = make(compression=compression), noise(2, 27, 6)
    expected = torch.stack([transcription(layer, row)[0] for row in x])
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("memory", [4, 8])
def test_without_compressed_rows_it_is_transformer_xl(memory):
    layer = make(memory=memory, compressed=0, ratio=3)
    other, x = make(TransformerXL, memory=memory), noise(2, 23, 6)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x)[0], other(x)[0], rtol=1e-12, atol=1e-12)


@every
def test_rows_that_are_not_compressed_are_a_longer_memory(compression):
    layer = make(compressed=7, ratio=1, compression=compression)
    other, x = make(TransformerXL, memory=15), noise(2, 39, 6)
    if compression in ("conv", "dilated"):
        torch.nn.init.eye_(layer.fewer.weight)
        torch.nn.init.zeros_(layer.fewer.bias)
    other.load_state_dict({n: p for n, p in layer.state_dict().items() if "fewer" not in n})
    torch.testing.assert_close(layer(x)[0], other(x)[0], rtol=1e-12, atol=1e-12)


def added(layer, x, state=None, **more):
    with added_losses() as found:
        _, after = layer(x, state, **more)
    return found.take(), after


@pytest.mark.parametrize("compression", ["conv", "dilated"])
def test_the_loss_of_f_is_that_of_its_equation_and_trains_f_alone(compression):
    layer, x = make(compression=compression), noise(2, 27, 6)
    loss, _ = added(layer, x)
    expected = torch.stack([transcription(layer, row)[1] for row in x]).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    named = dict(layer.named_parameters())
    got = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    wanted = torch.autograd.grad(expected, list(layer.fewer.parameters()))
    torch.testing.assert_close(got[-2:], wanted)
    assert [n for n, g in zip(named, got, strict=True) if g is None] == list(named)[:-2]


def test_the_loss_of_a_sequence_is_the_sum_of_its_pieces():
    layer, x = make(), noise(2, 30, 6)
    reset = torch.zeros(2, 30, dtype=torch.bool)
    reset[0, 9] = reset[1, 13] = True  # of 9, 21, 13 and 17 steps
    whole, _ = added(layer, x, reset=reset)
    for lengths in ([30], [13, 17], [5] * 6, [1] * 30):
        total, state = 0.0, None
        for part, r in zip(x.split(lengths, 1), reset.split(lengths, 1), strict=True):
            loss, state = added(layer, part, state, reset=r)
            total += loss * part.shape[1] / 30
        torch.testing.assert_close(total, whole)
    alone = [
        added(layer, row[None])[0] * len(row)
        for z, t in ((x[0], 9), (x[1], 13))
        for row in (z[:t], z[t:])
    ]
    torch.testing.assert_close(sum(alone) / 60, whole)


def test_where_losses_are_collected_the_loss_of_the_model_does_not_train_f():
    layer, x = make(), noise(2, 27, 6)
    weights = list(layer.fewer.parameters())
    with added_losses():
        y, _ = layer(x)
    assert torch.autograd.grad(y.square().sum(), weights, allow_unused=True) == (None, None)
    for other in (layer.eval(), make(reconstruct=False)):
        with added_losses() as found:
            y, _ = other(x)
        assert found.take() is None
        own = list(other.fewer.parameters())
        assert all(g.any() for g in torch.autograd.grad(y.square().sum(), own))


def test_f_has_a_gradient_where_nothing_has_left_the_memory():
    layer = make()
    loss, _ = added(layer, noise(2, 5, 6))
    grads = torch.autograd.grad(loss, list(layer.fewer.parameters()))
    assert not any(g.any() for g in grads)


def test_the_loss_teaches_f_to_reconstruct():
    layer, x = make(), noise(4, 40, 6)
    first, optimiser = added(layer, x)[0].item(), torch.optim.Adam(layer.fewer.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        loss, _ = added(layer, x)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.3 * first


def test_nothing_is_added_for_a_learner_that_is_called_by_itself():
    layer = make()
    batch = Batch(noise(2, 27, 6), noise(2, 27, 6), None, None)
    build("bptt").step(layer, batch, None, Loop(torch.nn.functional.mse_loss))
    assert layer.fewer.weight.grad.any()  # by the loss of the model


@pytest.mark.parametrize("compression", ["conv", "used"])
@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "edges"])
def test_laws_hold_with_other_rows(law, compression):
    check_property(law, partial(CompressiveTransformer, **SMALL, compression=compression))


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="memory must be a multiple of segment=4, got 6"):
        make(memory=6)
    with pytest.raises(LinrnnError, match="ratio must divide segment=4, got 3"):
        make(ratio=3)
    with pytest.raises(LinrnnError, match="compressed must be an integer of at least 0, got -1"):
        make(compressed=-1)
    with pytest.raises(LinrnnError, match="no CompressiveTransformer compression named 'zip'"):
        make(compression="zip")
