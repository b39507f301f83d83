"""Draws that belong together: each alone may have the published distribution, and the pair not.

Every two vectors of a fresh layer are compared, in all parameters of every mixer: those that rise
and fall together are the ones whose system says so, and no others.
"""

import itertools

import pytest
import torch

from linrnn import mixers
from linrnn.testing._options import texts_and_flags

WIDTH = 48  # entries of a vector, few of which rise and fall together by chance

#: Of a pair, by the names of the parameters, the sign of its correlation; options that make it so.
TIED = {
    # gamma normalises what a mode of this modulus collects
    ("lru", "nu_log gamma_log"): ({}, 1),
    ("lru", "nu gamma_log"): ({"parametrisation": "exponential"}, 1),
    ("slru", "nu_log gamma_log"): ({}, 1),
    # the public code repeats the draw of one step size for real and imaginary part
    ("dss", "log_dt[:, 0] log_dt[:, 1]"): ({"separate_dt": True}, 1),
    # a gate that forgets late lets in little: the input or refine gate has the negative bias
    ("gilr", "in_proj.bias[1] in_proj.bias[2]"): ({"gates": "ur"}, -1),
    ("elstm", "in_proj.bias[1] in_proj.bias[3]"): ({"gates": "ur"}, -1),
    ("sru", "bias[0] bias[2]"): ({"gates": "ur"}, -1),
    ("fast_grnn", "b_z b_s"): ({"gates": "ur"}, -1),
    ("gru", "bias_ih_l0[1] bias_ih_l0[3]"): ({"gates": "ur"}, -1),
    ("ls_lstm", "in_proj.bias[1] in_proj.bias[3]"): ({"gates": "uniform"}, -1),
    ("lstm", "bias_ih_l0[0] bias_ih_l0[1]"): ({"gates": "uniform"}, -1),
    ("qrnn", "in_proj.bias[1] in_proj.bias[3]"): ({"gates": "ur"}, -1),
    # queries and keys begin alike, so that a step sees itself best
    ("gau", "b[0] b[1]"): ({}, 1),
    ("flash_gau", "b[0] b[1]"): ({}, 1),
}


def drawn(make, options, seed):
    torch.manual_seed(seed)
    layer = make(d_model=WIDTH, dtype=torch.float64, **options)
    return {name: p.detach() for name, p in layer.named_parameters()}


def vectors(parameters):
    """Whole parameters, and the columns, rows and parts that belong to gates or coordinates."""
    for name, p in parameters.items():
        if p.ndim == 1 and len(p) % WIDTH == 0:
            parts = p.view(-1, WIDTH)
            yield from (
                (f"{name}[{i}]" if len(parts) > 1 else name, x) for i, x in enumerate(parts)
            )
        elif p.ndim == 2 and p.shape[1] <= 4 < p.shape[0]:
            yield from ((f"{name}[:, {i}]", x) for i, x in enumerate(p.T))
        elif p.ndim == 2 and p.shape[0] <= 4 < p.shape[1]:
            yield from ((f"{name}[{i}]", x) for i, x in enumerate(p))
        elif p.ndim > 1:
            yield name, p.flatten()


def ranks(x):
    return x.argsort().argsort().double()


def ties(make, options):
    first, second = (dict(vectors(drawn(make, options, seed))) for seed in (0, 1))
    random = [
        name
        for name, x in first.items()
        if not torch.equal(x, second[name]) and 30 < x.numel() == x.unique().numel() < 2**14
    ]
    found = {}
    for a, b in itertools.combinations(random, 2):
        if first[a].shape == first[b].shape:
            both = torch.stack([ranks(first[a]), ranks(first[b])])
            r = torch.corrcoef(both)[0, 1].item()
            if abs(r) > 0.9:
                found[f"{a} {b}"] = round(r)
    return found


@pytest.mark.parametrize(("name", "pair"), TIED, ids=lambda x: x.replace(" ", "-"))
def test_draws_that_a_system_ties_together_are_one(name, pair):
    options, sign = TIED[name, pair]
    assert ties(mixers.load(name), options).get(pair) == sign


@pytest.mark.parametrize("name", mixers.names())
def test_all_other_draws_are_independent(name):
    make = mixers.load(name)
    allowed = {pair for mixer, pair in TIED if mixer == name}
    for options in ({}, *texts_and_flags(make)):
        assert ties(make, options).keys() <= allowed, options


def test_two_step_sizes_of_a_channel_are_the_same_number():
    log_dt = drawn(mixers.load("dss"), {"separate_dt": True}, 0)["log_dt"]
    assert torch.equal(log_dt[:, 0], log_dt[:, 1])
    assert log_dt[:, 0].unique().numel() == WIDTH
