"""Roles of parameters are declared: weights decay; biases, gains and first states do not."""

import inspect
import re
import typing

import pytest
import torch
from torch import nn

from linrnn import SequenceModel, mixers
from linrnn.block import BLOCKS
from linrnn.nn import has_decay
from linrnn.train import OptimConfig, param_groups

CONFIG = OptimConfig(weight_decay=0.1)
#: Names that are biases, gains, skips or first states in every paper whose notation has them.
NO_WEIGHT = re.compile(
    r"(^|\.)(bias\w*|b|b_\w+|\w*_bias|gain|shift|mu(_\w+)?|[hcs]0(_\w+)?|D|norm\w*|gamma)$"
)


def variants(name):
    """Options one at a time, for the parameters that hang on them."""
    yield {}
    for key, parameter in inspect.signature(mixers.load(name)).parameters.items():
        if key in ("d_model", "device", "dtype"):
            continue
        for kind in (parameter.annotation, *typing.get_args(parameter.annotation)):
            if typing.get_origin(kind) is typing.Literal:
                yield from ({key: value} for value in typing.get_args(kind))
            elif kind is bool:
                yield {key: not parameter.default}


def built(name):
    for options in variants(name):
        try:
            yield mixers.build(name, 8, options)
        except ValueError:  # one option needs another
            continue


def blocks():
    for block in BLOCKS:
        for norm in ("layer", "batch", "rms"):
            yield SequenceModel(2, 2, d_model=8, n_layers=2, block=block, norm=norm)
    yield SequenceModel(9, 2, d_model=8, n_layers=2, encoder="tokens", documents=2)
    yield SequenceModel(2, 2, d_model=8, n_layers=1, tiers=(2,), pool="none")


def undeclared(model):
    """Classes of ours with parameters that say nothing of them."""
    return {
        type(part).__name__
        for part in model.modules()
        if next(part.parameters(recurse=False), None) is not None
        and not type(part).__module__.startswith("torch.")
        and getattr(part, "weight_parameters", None) is None
    }


def decaying(model):
    groups = param_groups(model, CONFIG)
    ids = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    return {name for name, p in model.named_parameters() if id(p) in ids}


@pytest.mark.parametrize("name", mixers.names())
def test_every_parameter_of_a_mixer_is_declared_and_no_bias_decays(name):
    for layer in built(name):
        assert undeclared(layer) == set()
        assert [key for key in decaying(layer) if NO_WEIGHT.search(key)] == []


def test_so_is_every_other_part_of_a_model():
    for model in blocks():
        assert undeclared(model) == set()
        assert [key for key in decaying(model) if NO_WEIGHT.search(key)] == []


@pytest.mark.parametrize(
    ("name", "options", "keys"),
    [
        ("slstm", {}, ["bias"]),
        ("rg_lru", {}, ["bias"]),
        ("sru", {}, ["bias"]),
        ("block_recurrent", {}, ["bias"]),
        ("memformer", {}, ["bias"]),
        ("r_transformer", {}, ["bias_ih", "bias_hh"]),
        ("lssl", {}, ["D"]),
        ("mega", {}, ["mu"]),
        ("recurrent_attention_network", {}, ["gain"]),
    ],
)
def test_parameters_of_two_axes_that_are_no_weights(name, options, keys):
    layer = mixers.build(name, 8, options)
    several = {n for n, p in layer.named_parameters() if p.ndim >= 2}
    for key in keys:
        own = {n for n in several if n.rpartition(".")[2] == key}
        assert own
        assert own & decaying(layer) == set()


@pytest.mark.parametrize("name", ["lru", "gru", "gla", "mamba", "attention", "rwkv6"])
def test_maps_decay(name):
    layer = mixers.build(name, 8)
    maps = {
        f"{part}.weight" for part, module in layer.named_modules() if isinstance(module, nn.Linear)
    } - set(layer.recurrent_parameters)
    assert maps <= decaying(layer)


def test_every_parameter_is_in_one_group():
    model = SequenceModel(9, 9, d_model=8, n_layers=2, encoder="tokens", tie_embeddings=True)
    grouped = [p for group in param_groups(model, CONFIG) for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped}) == len(list(model.parameters()))


def test_a_class_that_says_nothing_goes_by_axes():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.v = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))

    module = Mine()
    assert has_decay(module, "w")
    assert not has_decay(module, "v")
