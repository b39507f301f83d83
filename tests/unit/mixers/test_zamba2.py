"""Zamba2's hybrid layer against its equation written out, in stacks, and its words for errors."""

import pytest
import torch
import torch.nn.functional as F

from linrnn import SequenceModel
from linrnn.errors import LinrnnError
from linrnn.mixers import Zamba2
from linrnn.state import leaves

D = 8
SMALL = {"n_heads": 2, "d_ffn": 5, "rank": 3, "d_state": 4, "mamba_head": 4}


def rms(x, weight):
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("adapters", [False, True])
def test_is_a_transformer_block_before_mamba(adapters):
    layer = Zamba2(D, adapters=adapters, **SMALL, dtype=torch.float64)
    x, e = torch.randn(2, 2, 11, D, dtype=torch.float64)
    weights = layer.block()[0]
    u = rms(torch.cat([x, e], -1), weights["pre_norm"])
    vectors = [u @ weights[name].T for name in ("query", "key", "value")]
    if adapters:
        vectors = [v + a(u) for v, a in zip(vectors, layer.qkv_adapters, strict=True)]
    q, k, v = (z.unflatten(-1, (2, 8)).transpose(1, 2) for z in vectors)
    scores = q @ k.mT / 4**0.5  # half of the eight channels of a head
    future = torch.ones(11, 11, dtype=torch.bool).triu(1)
    o = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
    z = rms(o.transpose(1, 2).flatten(2) @ weights["out"].T, weights["mid_norm"])
    g, h = (z @ weights["up"].T + layer.up_adapter(z)).chunk(2, -1)
    t = layer.down_proj((F.gelu(g) * h) @ weights["down"].T)
    expected, _ = layer.mamba(rms(x + t, layer.norm.weight))
    stacked = Zamba2(D, adapters=adapters, **SMALL, receives=Zamba2.carries, dtype=torch.float64)
    stacked.load_state_dict(layer.state_dict())
    y, _, outgoing = stacked(x, signals={"embedding": e})
    torch.testing.assert_close(y, expected)
    assert outgoing == {}


def model(n_sets=1, **options):
    pattern = ("mamba2", "zamba2", "zamba2", "mamba2", "zamba2")
    of_mamba = {"d_state": 4, "d_head": 4}
    return SequenceModel(
        *(5, 5),
        mixer=pattern,
        mixer_options={"mamba2": of_mamba, "zamba2": {**SMALL, "n_sets": n_sets}},
        **{"d_model": D, "n_layers": 5, "block": "bare", "norm": "rms", "pool": "none"},
        **{"encoder": "tokens", "dtype": torch.float64, **options},
    )


def test_calls_have_one_block_and_caches_of_their_own():
    one, two = model(), model(2)
    assert len(list(one.shared.parameters())) == 8
    assert len(list(two.shared.parameters())) == 16
    weights = [two.shared(5)[layer] for layer in (1, 2, 4)]
    assert weights[0]["up"] is weights[2]["up"]
    assert weights[0]["up"] is not weights[1]["up"]
    ids = torch.arange(14).view(2, 7) % 5
    _, state = one(ids)
    caches = [state["layers"][layer]["k"] for layer in (1, 2, 4)]
    assert all(cache.shape == (2, 7, 2, 8) for cache in caches)
    assert not caches[0].equal(caches[1])


def test_every_call_reads_the_embedding_of_its_step():
    made, ids = model(), torch.arange(14).view(2, 7) % 5
    z = made.encoder(ids).detach()
    by_hand = z
    shared = made.shared(5)
    for block, common in zip(made.blocks, shared, strict=True):
        if isinstance(block.mixer, Zamba2):
            by_hand, _, _ = block(by_hand, signals={"embedding": z, **common})
        else:
            by_hand, _ = block(by_hand)
    torch.testing.assert_close(made.features_of(z)[0], by_hand)
    state, outputs = made.init_state(2), []
    for ids_t in ids.unbind(1):
        y, state = made.step(ids_t, state)
        outputs.append(y)
    y, last = made(ids)
    torch.testing.assert_close(torch.stack(outputs, 1), y)
    for got, expected in zip(leaves(state), leaves(last), strict=True):
        torch.testing.assert_close(got, expected)


def test_its_block_has_no_norm_before_it_but_one_behind():
    norms = [type(block.norm).__name__ for block in model().blocks]
    assert norms == ["RMSNorm", "Identity", "Identity", "RMSNorm", "Identity"]
    assert all(type(b.norm).__name__ == "RMSNorm" for b in model(prenorm=False).blocks)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_heads": 3}, "Zamba2: n_heads must divide 2 d_model, 16, got 3"),
        ({"n_heads": 16, "rotary": True}, "divide 2 d_model into even parts, 16, got 16"),
        ({"rank": 0}, "Zamba2: rank must be an integer of at least 1, got 0"),
        ({"n_sets": 0}, "Zamba2: n_sets must be an integer of at least 1, got 0"),
        ({"receives": ("bound",)}, "Zamba2: receives must be of"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Zamba2(D, **options)
