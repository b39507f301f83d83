"""No parameter of a fresh model stands still: every mixer in `RNN` and in every kind of block.

Not every mixer meets every block in the quick tests: every trait of mixers does.

That 100 steps of Adam lower the loss is the law `trains`, of two layers with nothing around them.
"""

from dataclasses import fields
from itertools import product

import pytest
import torch

import mixer_pairs
from linrnn import RNN, SequenceModel, mixers
from linrnn.block import BLOCKS
from linrnn.mixers._contract.choices import Choices
from linrnn.testing._mixer_laws import SEEN, signal

CHANNELS, WIDTH, TIME = 3, 6, 8

each_mixer = pytest.mark.parametrize("name", mixers.names())


def too_small(model, x):
    """Parameters whose gradient is zero, or next to it, after one backward pass."""
    y, _ = model(x)
    (y - signal(*y.shape, seed=5)).square().mean().backward()
    sizes = {
        name: 0.0 if p.grad is None else p.grad.abs().max().item()
        for name, p in model.named_parameters()
        if p.requires_grad  # a reservoir's do not
    }
    return {name: size for name, size in sizes.items() if not size > SEEN}


def short(name):
    """Options with which a mixer shows all it does within `TIME` steps."""
    options = dict(mixers.load(name).in_laws)
    return {"mixer_options": options} if options else {}


@pytest.mark.sampled
@each_mixer
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"proj_size": 4}], ids=str)
def test_every_parameter_of_two_layers_has_a_gradient(name, options):
    torch.manual_seed(0)
    options = {**options, **short(name)}
    rnn = RNN(name, CHANNELS, WIDTH, num_layers=2, batch_first=True, dtype=torch.float64, **options)
    assert not too_small(rnn, signal(4, TIME, CHANNELS))


KINDS = list(product(BLOCKS, ("prenorm", "postnorm")))


@pytest.mark.parametrize(("name", "block", "order"), mixer_pairs.cases(mixers.names(), KINDS))
def test_every_parameter_of_two_blocks_has_a_gradient(name, block, order):
    torch.manual_seed(0)
    model = SequenceModel(
        CHANNELS,
        2,
        mixer=name,
        d_model=WIDTH,
        n_layers=2,
        block=block,
        norm="layer",
        prenorm=order == "prenorm",
        conv_width=3,
        encoder_norm=True,
        final_norm=True,
        pool="none",
        dtype=torch.float64,
        **short(name),
    )
    assert not too_small(model, signal(4, TIME, CHANNELS))


def test_every_block_meets_every_trait_of_mixers_in_the_quick_tests():
    quick = mixer_pairs.pairs(mixers.names(), KINDS)
    assert quick == mixer_pairs.pairs(mixers.names(), KINDS)
    assert {surrounding for _, surrounding in quick} == set(KINDS)
    for name in mixers.names():
        assert len({kind for mixer, kind in quick if mixer == name}) >= 2, name
    for field in fields(Choices):
        met, words = set(), set()
        for name in mixers.names():
            words.add(getattr(mixers.load(name).choices, field.name))
        for name, (block, _) in quick:
            met.add((getattr(mixers.load(name).choices, field.name), block))
        assert met == set(product(words, BLOCKS)), field.name
    assert len(quick) < len(KINDS) * len(mixers.names()) / 5


PUBLISHED = [
    (name, cls)
    for name, cls in ((name, mixers.load(name)) for name in mixers.names())
    if "published" in str(cls.__init__.__annotations__.get("init"))
]


@pytest.mark.parametrize("name", [name for name, _ in PUBLISHED])
def test_published_start_is_still_what_it_was_and_is_seen(name):
    """The reason for this file's other tests: with this start, two layers cannot learn."""
    torch.manual_seed(0)
    options = {"mixer_options": {"init": "published"}, "dtype": torch.float64}
    rnn = RNN(name, CHANNELS, WIDTH, num_layers=2, batch_first=True, **options)
    # but the bias of an output, which is seen whatever is before it
    recurrent = {n for n, _ in rnn.named_parameters() if ".mixer." in n} - {"cells.1.mixer.b_out"}
    small = too_small(rnn, signal(4, TIME, CHANNELS)).keys()
    assert recurrent & small if name == "mega" else recurrent <= small
    model = SequenceModel(
        CHANNELS, 2, mixer=name, d_model=WIDTH, n_layers=2, block="channel_mix", **options
    )
    assert any("channel_mix.key" in n for n in too_small(model, signal(4, TIME, CHANNELS)))
