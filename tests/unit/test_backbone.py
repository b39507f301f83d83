"""SequenceModel: streaming equals reading, pooling, a plain PyTorch loop, error messages."""

import pytest
import torch

from linrnn import SequenceModel, mixers
from linrnn.backbone import Block
from linrnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from linrnn.state import leaves


def model(**options):
    torch.manual_seed(0)
    defaults = {"d_model": 8, "n_layers": 2, "dtype": torch.float64}
    return SequenceModel(3, 4, **{**defaults, **options}).eval()


@pytest.mark.parametrize("mixer", mixers.names())
@pytest.mark.parametrize("pool", ["mean", "last", "none"])
@pytest.mark.parametrize("prenorm", [True, False])
def test_steps_and_pieces_equal_one_pass(mixer, pool, prenorm):
    net = model(mixer=mixer, pool=pool, prenorm=prenorm)
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    y, state = net(x)
    assert y.shape == ((2, 11, 4) if pool == "none" else (2, 4))
    first, carried = net(x[:, :6])
    second, carried = net(x[:, 6:], carried)
    pieces = torch.cat([first, second], 1) if pool == "none" else second
    torch.testing.assert_close(pieces, y)
    streamed = net.init_state(2)
    outputs = []
    for t in range(11):
        y_t, streamed = net.step(x[:, t], streamed)
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1) if pool == "none" else outputs[-1], y)
    for other in (carried, streamed):
        for got, expected in zip(leaves(other), leaves(state), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_padding_is_ignored_by_the_pooling(pool):
    net = model(pool=pool)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    y, _ = net(x, lengths=torch.tensor([9, 4]))
    torch.testing.assert_close(y[0], net(x[:1])[0][0])
    torch.testing.assert_close(y[1], net(x[1:, :4])[0][0])


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_reset_starts_a_new_sequence_in_every_layer_and_the_pooling(pool):
    net = model(pool=pool)
    x = torch.randn(1, 9, 3, dtype=torch.float64)
    reset = torch.zeros(1, 9, dtype=torch.bool)
    reset[:, [2, 5]] = True
    y, _ = net(x, reset=reset)
    torch.testing.assert_close(y, net(x[:, 5:])[0])


def test_tokens_are_embedded():
    net = SequenceModel(11, 5, encoder="tokens", pool="none", d_model=8, n_layers=1).eval()
    tokens = torch.randint(11, (2, 7))
    y, _ = net(tokens)
    assert y.shape == (2, 7, 5)
    y_0, _ = net.step(tokens[:, 0], net.init_state(2))
    torch.testing.assert_close(y_0, y[:, 0])


def test_block_is_the_papers_figure():
    """Pre-norm: x + GLU(GELU(mixer(norm(x)))), written out."""
    torch.manual_seed(0)
    block = Block(mixers.build("lru", 6), norm="layer").eval()
    x = torch.randn(2, 5, 6)
    z = torch.nn.functional.gelu(block.mixer(torch.nn.functional.layer_norm(x, (6,)))[0])
    value, gate = (z @ block.glu.linear.weight.mT + block.glu.linear.bias).chunk(2, -1)
    torch.testing.assert_close(block(x)[0], x + value * torch.sigmoid(gate))


def test_batch_norm_takes_statistics_over_batch_and_time():
    net = model(norm="batch").train()
    net(torch.randn(4, 50, 3, dtype=torch.float64))
    seen = net.encoder(torch.zeros(1, 3, dtype=torch.float64))
    norm = net.blocks[0].norm
    assert norm.num_batches_tracked == 1
    assert norm.running_mean.shape == seen.shape[1:]


def test_a_plain_pytorch_loop_learns():
    """Which of two frequencies: no Lightning, no configuration."""
    torch.manual_seed(0)
    net = SequenceModel(1, 2, d_model=16, n_layers=1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    label = torch.randint(2, (64,))
    t = torch.arange(40.0)
    x = torch.sin(t * (0.2 + 0.3 * label[:, None]) + torch.rand(64, 1) * 6)[..., None]
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(net(x)[0], label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


ERRORS = [
    ({"mixer": "lur"}, UnknownNameError, "no mixer named 'lur'. Did you mean 'lru'?"),
    ({"mixer_options": {"d_stat": 3}}, UnknownNameError, "option of mixer 'lru' named 'd_stat'"),
    ({"norm": "btach"}, UnknownNameError, "Did you mean 'batch'?"),
    ({"pool": "max"}, UnknownNameError, "no Pool kind named 'max'"),
    ({"encoder": "conv"}, UnknownNameError, "encoder named 'conv'"),
    ({"n_layers": 0}, ArgumentError, "n_layers must be an integer of at least 1, got 0"),
    ({"dropout": 1.0}, ArgumentError, r"dropout must be in \[0, 1\), got 1.0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), ERRORS)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        model(**options)


@pytest.mark.unchecked
def test_inputs_and_states_are_checked():
    net = model()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    with pytest.raises(
        ShapeError, match=r"x must have shape \(batch, time, d_input=3\), got \(2, 3\)"
    ):
        net(x[:, 0])
    with pytest.raises(ShapeError, match=r"x_t must have shape \(batch, d_input=3\)"):
        net.step(x, net.init_state(2))
    with pytest.raises(DTypeError, match="state must be what this model returned"):
        net(x, torch.zeros(2))
    with pytest.raises(ArgumentError, match="state must hold 2 layers like the model, got 3"):
        net(x, model(n_layers=3).init_state(2))
    with pytest.raises(
        ShapeError, match=r"state must have shape \(batch=2, d_state=8\), got \(1, 8\)"
    ):
        net(x, net.init_state(1))
    with pytest.raises(DTypeError, match="x must be integer token ids"):
        SequenceModel(5, 5, encoder="tokens")(torch.zeros(1, 3))
