import math

import pytest
import torch
from torch import nn

from linrnn import SequenceModel
from linrnn.train import OptimConfig, lr_factor, param_groups


def grouped(model, config=None):
    groups = param_groups(model, config or OptimConfig())
    names = {id(p): n for n, p in model.named_parameters()}
    return {g["name"]: {names[id(p)] for p in g["params"]} for g in groups}, groups


def test_param_groups_follow_the_mixers_declaration():
    model = SequenceModel(1, 2, d_model=4, n_layers=2)
    names, groups = grouped(model, OptimConfig(lr=0.01, recurrent_lr_factor=0.25, weight_decay=0.3))
    own = dict(model.mixers[0].named_parameters())  # some of the declared depend on options
    declared = [p for p in type(model.mixers[0]).recurrent_parameters if p in own]
    assert {"nu_log", "theta_log", "gamma_log", "B"} <= set(declared)
    assert names["recurrent"] == {f"blocks.{i}.mixer.{p}" for i in range(2) for p in declared}
    settings = {g["name"]: (g["lr"], g["weight_decay"]) for g in groups}
    assert settings == {"recurrent": (0.0025, 0.0), "weights": (0.01, 0.3), "vectors": (0.01, 0.0)}


def test_param_groups_keep_decay_from_biases_and_norms():
    model = SequenceModel(1, 2, d_model=4, n_layers=1)
    names, _ = grouped(model)
    assert {"encoder.bias", "head.bias", "blocks.0.norm.weight", "blocks.0.norm.bias"} <= names[
        "vectors"
    ]
    assert {"encoder.weight", "head.weight", "blocks.0.mixer.C"} <= names["weights"]


def test_param_groups_hold_every_parameter_once():
    model = SequenceModel(1, 2, d_model=4, n_layers=3)
    names, _ = grouped(model)
    assert sorted(n for group in names.values() for n in group) == sorted(
        n for n, _ in model.named_parameters()
    )


def test_param_groups_of_a_model_without_mixers():
    names, groups = grouped(nn.Linear(2, 3))
    assert names == {"weights": {"weight"}, "vectors": {"bias"}}
    torch.optim.AdamW(groups)


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        (0, 0.1),
        (4, 0.5),
        (9, 1.0),
        (10, 1.0),
        (99, 0.2),
        (500, 0.2),
        (10 + 89 // 2, 0.2 + 0.8 * (1 + math.cos(math.pi * 44 / 89)) / 2),
    ],
)
def test_lr_factor_warms_up_and_decays_to_the_last_rate(step, factor):
    config = OptimConfig(lr=2e-3, min_lr=4e-4, warmup_fraction=0.1)
    assert lr_factor(step, 100, config) == pytest.approx(factor)


def test_lr_factor_rises_then_falls():
    factors = [lr_factor(s, 50, OptimConfig(warmup_fraction=0.2)) for s in range(50)]
    assert factors[:10] == sorted(factors[:10])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[-1] == pytest.approx(0)


@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 1.0])
def test_lr_factor_of_a_short_run_is_in_range(total, warmup):
    config = OptimConfig(warmup_fraction=warmup)
    assert all(0 <= lr_factor(s, total, config) <= 1 for s in range(total))
