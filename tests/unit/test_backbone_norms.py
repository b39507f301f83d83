"""The backbone's options that other people's checkpoints need: norms, their eps, a bare head."""

import pytest
import torch
import torch.nn.functional as F

from linrnn import SequenceModel
from linrnn.errors import ArgumentError
from linrnn.nn import make_norm


def model(**options):
    torch.manual_seed(0)
    net = SequenceModel(
        11, 11, d_model=6, n_layers=1, norm="layer", pool="none", encoder="tokens", **options
    )
    return net.eval()


def test_what_the_encoder_gives_is_normalised_in_sequences_and_steps():
    net, plain = model(encoder_norm=True), model()
    net.load_state_dict(plain.state_dict(), strict=False)
    torch.nn.init.normal_(net.encoder_norm.weight)
    ids = torch.randint(11, (2, 5))
    y, _ = net(ids)
    with torch.no_grad():  # the same, folded into the embedding
        plain.encoder.weight.copy_(net.encoder_norm(plain.encoder.weight))
    torch.testing.assert_close(y, plain(ids)[0])
    torch.testing.assert_close(net.step(ids[:, 0], net.init_state(2))[0], y[:, 0])


@pytest.mark.parametrize("kind", ["batch", "layer", "rms"])
def test_eps_is_under_the_root(kind):
    norm = make_norm(kind, 4, eps=3.0).eval()
    x = torch.randn(2, 4)
    expected = {
        "batch": x / 2.0,  # (1 + 3) ** 0.5
        "layer": F.layer_norm(x, (4,), eps=3.0),
        "rms": x / (x.square().mean(-1, keepdim=True) + 3).sqrt(),
    }[kind]
    torch.testing.assert_close(norm(x).detach(), expected)


def test_eps_reaches_every_norm():
    net = model(norm_eps=0.5, encoder_norm=True, final_norm=True, block="channel_mix")
    norms = [m for m in net.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert [m.eps for m in norms] == [0.5] * 4


def test_a_head_without_bias():
    assert model(head_bias=False).head.bias is None
    assert "head.bias" not in model(head_bias=False).state_dict()


def test_features_are_what_the_head_reads():
    net, ids = model(final_norm=True), torch.randint(11, (2, 5))
    z, state = net.features(ids)
    y, same = net(ids)
    torch.testing.assert_close(net.head(z), y)
    torch.testing.assert_close(state, same)


@pytest.mark.unchecked
@pytest.mark.parametrize("eps", [0.0, -1.0, float("inf")])
def test_eps_is_checked(eps):
    with pytest.raises(ArgumentError, match="eps must be positive and finite, got"):
        model(norm_eps=eps)
