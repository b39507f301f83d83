"""Padding changes nothing: whatever is there, and however much of it, in training too."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import linrnn.lightning
from linrnn import SequenceModel, mixers
from linrnn.block import BLOCKS
from linrnn.nn.norm import NORMS, make_norm
from linrnn.nn.pool import POOLS

FILLERS = (50.0, 1e30, float("nan"), float("inf"))
LENGTHS = torch.tensor([9, 4, 1, 6])
BATCH, TIME = len(LENGTHS), 9


def model(mixer="lru", **options):
    torch.manual_seed(0)
    given = {"d_model": 8, "n_layers": 2, "mixer_options": dict(mixers.load(mixer).in_laws)}
    return SequenceModel(3, 2, mixer=mixer, **given | options).double()


def padded(x, filler, time=TIME, lengths=LENGTHS):
    """(batch, time, ...) with the filler behind each row's end."""
    more = x.new_zeros(*x.shape[: lengths.ndim], time, *x.shape[lengths.ndim + 1 :])
    more.narrow(lengths.ndim, 0, TIME).copy_(x)
    there = torch.arange(time) < lengths[..., None]
    if x.is_floating_point():
        return torch.where(there.view(*there.shape, *[1] * (x.ndim - there.ndim)), more, filler)
    return torch.where(there, more, filler)


def trained(net, x, lengths=LENGTHS, **more):
    """Results of a training step: answers of valid steps, gradients, running statistics."""
    torch.manual_seed(1)  # of layers that draw numbers
    net.train().zero_grad()
    y, _ = net(x, lengths=lengths, **more)
    if net.pool.kind == "none":
        y = torch.where((torch.arange(y.shape[1]) < lengths[:, None])[..., None], y, 0)[:, :TIME]
    y.square().sum().backward()
    found = {"y": y} | {f"grad {n}": p.grad for n, p in net.named_parameters()}
    return found | {n: b.clone() for n, b in net.named_buffers()}


def check(make, x, fillers=FILLERS, lengths=LENGTHS, *, draws=False, **more):
    """Bit by bit with another filler, and but for rounding with more of it.

    Not with more of it where a number is drawn for every step: ``draws``.
    """
    expected = trained(make(), padded(x, 0, lengths=lengths), lengths, **more)
    for filler in fillers:
        marks = {
            name: padded(mark, filler if mark.is_floating_point() else True, lengths=lengths)
            for name, mark in more.items()
        }
        got = trained(make(), padded(x, filler, lengths=lengths), lengths, **marks)
        for name, value in expected.items():
            same = (value is None and got[name] is None) or torch.equal(got[name], value)
            assert same, (filler, name)
    if draws:
        return
    longer = {
        n: padded(m, True if m.dtype is torch.bool else 1.0, TIME + 5) for n, m in more.items()
    }
    got = trained(make(), padded(x, fillers[-1], TIME + 5, lengths), lengths, **longer)
    for name, value in expected.items():
        if value is not None:
            assert_close(got[name], value, msg=lambda text, name=name: f"{name}: {text}")


def signal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


X = signal(BATCH, TIME, 3)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_with_every_norm_and_pool(norm, pool, bidirectional):
    ends = {"encoder_norm": True, "final_norm": True, "prenorm": not bidirectional}
    options = {"norm": norm, "pool": pool, "bidirectional": bidirectional, **ends}
    check(lambda: model(**options), X)


@pytest.mark.parametrize("block", BLOCKS)
def test_with_every_block(block):
    check(lambda: model(block=block, conv_width=3), X)


@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
def test_with_every_mixer(name):
    draws = mixers.load(name).random_training
    check(lambda: model(name, n_layers=1), X, fillers=(float("nan"),), draws=draws)


@pytest.mark.parametrize("name", ["lru", "gru", "attention", "s4d"])
@pytest.mark.parametrize("unet", [False, True])
def test_at_several_rates(name, unet):
    check(lambda: model(name, n_layers=1, tiers=(2,), unet=unet), X)


@pytest.mark.parametrize("options", [{}, {"tiers": (2,)}, {"bidirectional": True}], ids=str)
def test_beside_marks_and_times(options):
    reset = torch.zeros(BATCH, TIME, dtype=torch.bool)
    reset[0, 5] = reset[3, 2] = True
    check(lambda: model(n_layers=1, **options), X, reset=reset)
    check(lambda: model("cfc", n_layers=1, **options), X, dt=0.5 + signal(BATCH, TIME).square())


def test_of_tokens():
    tokens = torch.randint(7, (BATCH, TIME), generator=torch.Generator().manual_seed(3))

    def make():
        torch.manual_seed(0)
        return SequenceModel(7, 2, encoder="tokens", d_model=8, n_layers=1).double()

    check(make, tokens, fillers=(6, -100, 10**6))


def test_of_pairs():
    lengths = torch.stack([LENGTHS, LENGTHS.flip(0)], 1)
    check(lambda: model(documents=2), signal(BATCH, 2, TIME, 3), lengths=lengths)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_of_valid_steps_is_that_of_torch_of_them_alone(momentum):
    x, valid = 5 + 3 * signal(BATCH, TIME, 4), torch.arange(TIME) < LENGTHS[:, None]
    ours, theirs = make_norm("batch", 4).double(), torch.nn.BatchNorm1d(4).double()
    ours.momentum = theirs.momentum = momentum
    for _ in range(2):
        mine, others = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = ours(mine, valid)[valid], theirs(others[valid])
        assert_close(y, expected)
        y.pow(3).sum().backward()
        expected.pow(3).sum().backward()
        assert_close(mine.grad, others.grad)
        for name, buffer in theirs.named_buffers():
            assert_close(getattr(ours, name), buffer)
        x = x.square()


def test_batch_norm_of_valid_steps_is_as_exact_under_autocast():
    x, valid = 5 + signal(BATCH, TIME, 4).float(), torch.arange(TIME) < LENGTHS[:, None]
    expected = make_norm("batch", 4)(x, valid)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = make_norm("batch", 4)(x, valid)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("steps", [0, 1])
def test_what_has_no_statistics_is_read_with_the_running_ones(steps):
    norm, x = make_norm("batch", 4), torch.full((2, 3, 4), float("nan"))
    x[0, :steps] = torch.arange(4.0)
    y = norm(x, torch.arange(3) < torch.tensor([[steps], [0]]))
    assert y.isfinite().all()
    assert_close(y[0, :steps], x[0, :steps], rtol=1e-4, atol=0)
    assert not norm.running_mean.any()
    assert norm.num_batches_tracked == 0


@pytest.mark.parametrize(
    ("loss", "learner"),
    [("mse", {}), ("cross_entropy", {"learner": "tbptt", "learner_options": {"window": 4}})],
    ids=str,
)
def test_fit_learns_the_same_whatever_padding_holds(loss, learner):
    """Rows that end before a window begins, and targets of padding, among them."""
    pytest.importorskip("lightning")
    classes = signal(BATCH, TIME, 2).argmax(-1)

    def learned(filler, target):
        net = model(pool="none", norm="batch").float()
        x, y = padded(X, filler).float(), padded(signal(BATCH, TIME, 2), filler).float()
        y = y if loss == "mse" else padded(classes, target)
        loader = DataLoader(TensorDataset(x, y, LENGTHS), batch_size=BATCH)
        linrnn.lightning.fit(net, loader, loss=loss, epochs=2, seed=0, **learner)
        return net.state_dict()

    expected = learned(0.0, 0)
    for filler in (50.0, float("nan")):
        got = learned(filler, 7)
        for name, value in expected.items():
            assert torch.equal(got[name], value), (filler, name)


def test_a_language_model_of_transformers_counts_its_tokens_alone():
    hf = pytest.importorskip("linrnn.interop.hf")
    tokens = torch.randint(7, (BATCH, TIME), generator=torch.Generator().manual_seed(3))

    def learned(front, behind):
        torch.manual_seed(0)
        options = {"vocab_size": 7, "mixer": "lru", "d_model": 8, "n_layers": 2, "norm": "batch"}
        net = hf.LinrnnForCausalLM(hf.LinrnnConfig(**options)).train()
        ids = torch.nn.functional.pad(padded(tokens, 6), (front, behind), value=5)
        mask = torch.nn.functional.pad(padded(torch.ones_like(tokens), 0), (front, behind))
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, front] = -100  # the first token is nobody's answer
        loss = net(ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        buffers = {n: b.clone() for n, b in net.named_buffers()}
        return {"loss": loss} | {n: p.grad for n, p in net.named_parameters()} | buffers

    expected = learned(0, 0)
    for front, behind in ((0, 3), (4, 0), (2, 1)):
        assert_close(learned(front, behind), expected)
