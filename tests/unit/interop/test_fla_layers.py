"""Layers of flash-linear-attention as mixers and back, with the numbers that theirs gave."""

import json
import re
from pathlib import Path

import pytest
import torch

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.interop import fla
from linrnn.interop._fla_layer_table import LAYERS
from linrnn.mixers import ABC, GLA, HGRN, LSTM, DeltaNet, MomentumDeltaNet, load

CONTENT = json.loads((Path(__file__).parent / "fla_layers.json").read_text())
CASES = [(name, case) for name, layer in CONTENT["layers"].items() for case in layer["cases"]]


def label(value):
    if isinstance(value, str):
        return value
    return " ".join(f"{k}={v}" for k, v in value["config"].items() if k != "hidden_size")


def waves(*shape, rate):
    count = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64)
    return torch.sin(rate * count).view(shape).float()


def weights_of(case):
    shapes = case["parameters"].items()
    return {x: 0.5 * waves(*shape, rate=n) for n, (x, shape) in enumerate(shapes, 1)}


@pytest.mark.parametrize(("name", "case"), [c for c in CASES if "y" in c[1]], ids=label)
@torch.no_grad()
def test_a_mixer_has_the_outputs_of_the_layer(name, case):
    mixer = fla.from_layer(name, weights_of(case), **case["config"])
    more = {}
    if "v_first" in getattr(mixer, "receives", ()):
        more["signals"] = {"v_first": waves(2, 9, mixer.d_model, rate=0.9)}
    y = mixer(waves(2, 9, mixer.d_model, rate=0.37), **more)[0].flatten()[::7]
    expected = torch.tensor(case["y"])
    assert (y - expected).abs().max() <= 1e-5 * expected.abs().max()  # 3.6e-6 measured


@pytest.mark.parametrize(("name", "case"), CASES, ids=label)
def test_weights_and_options_come_back(name, case):
    weights = weights_of(case)
    mixer = fla.from_layer(name, weights, **case["config"])
    same, config, back = fla.to_layer(mixer)
    assert same == name
    assert {x: list(w.shape) for x, w in back.items()} == case["parameters"]
    defaults = CONTENT["layers"][name]["defaults"]
    for option, value in case["config"].items():
        if value is not None:
            returned = config.get(option, defaults.get(option))
            assert (list(returned) if isinstance(returned, tuple) else returned) == pytest.approx(
                value
            )
    again = fla.from_layer(name, back, **config)
    for x, ours in mixer.named_parameters():
        torch.testing.assert_close(again.get_parameter(x), ours)
    # norms that are in the last map: without them everything is equal
    plain = {x: torch.ones_like(w) if bool((back[x] == 1).all()) else w for x, w in weights.items()}
    _, _, back = fla.to_layer(fla.from_layer(name, plain, **case["config"]))
    torch.testing.assert_close(back, plain)


def test_every_layer_has_a_case_and_the_defaults_of_theirs():
    assert fla.layer_names() == sorted(CONTENT["layers"])
    for name, layer in LAYERS.items():
        ours = {}
        for option in layer.options:
            ours |= option.theirs
        theirs = CONTENT["layers"][name]["defaults"]
        listed = {
            x: [str(z) if z == float("inf") else z for z in y] if isinstance(y, tuple) else y
            for x, y in ours.items()
        }
        expected = {x: theirs.get(x) for x in listed}
        assert listed == expected, name
        assert theirs.keys() <= ours.keys(), name


def test_the_page_lists_all_layers_and_functions_of_theirs():
    page = (Path(__file__).parents[3] / "docs/flash-linear-attention.md").read_text("utf-8")
    layers, functions = page.split("## Every layer")[1].split("## Every function")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", layers, re.MULTILINE))
    assert list(rows) == CONTENT["all_layers"]
    for name, here in rows.items():
        mixer = LAYERS[name].mixer if name in LAYERS else None
        assert here == (f"[{load(mixer).__name__}](mixers/{mixer}.md)" if mixer else "none")
    table, more = functions.split("Names that fla keeps")
    rows = dict(re.findall(r"^\| `(\w+)` \| (yes|no) \|", table, re.MULTILINE))
    assert list(rows) == CONTENT["all_ops"]
    listed = {name for name, here in rows.items() if here == "yes"}
    apart = set(re.findall(r"`(\w+)`", more.split(".")[0]))
    assert listed | apart == set(fla.names())
    assert not apart & set(CONTENT["all_ops"])


def test_a_class_stands_for_its_name_and_a_dtype_stays():
    class GatedLinearAttention:
        pass

    _, config, weights = fla.to_layer(GLA(8, n_heads=2, norm="rms", gate_bias=False))
    half = {x: w.bfloat16() for x, w in weights.items()}
    mixer = fla.from_layer(GatedLinearAttention, half, **config)
    assert isinstance(mixer, GLA)
    assert mixer.heads.proj.weight.dtype == torch.bfloat16


def test_what_has_no_counterpart_is_said():
    name, config, weights = fla.to_layer(DeltaNet(8, n_heads=2))
    with pytest.raises(UnknownNameError, match="no layer of fla with a mixer of equal parameters"):
        fla.from_layer("MesaNet", weights, **config)
    with pytest.raises(UnknownNameError, match="no argument of DeltaNet named 'num_head'"):
        fla.from_layer(name, weights, hidden_size=8, num_head=2)
    with pytest.raises(ArgumentError, match="must have hidden_size, got num_heads"):
        fla.from_layer(name, weights, num_heads=2)
    other = {x.replace("q_proj", "q"): w for x, w in weights.items()}
    with pytest.raises(ArgumentError, match=r"missing: q_proj.weight; unknown: q.weight"):
        fla.from_layer(name, other, **config)
    with pytest.raises(ArgumentError, match="must fit its arguments"):
        fla.from_layer(name, {**weights, "b_proj.weight": torch.ones(3, 8)}, **config)
    with pytest.raises(ArgumentError, match="must fit its arguments"):
        fla.from_layer(name, {**weights, "q_proj.weight": torch.ones(3, 3)}, **config)
    with pytest.raises(ArgumentError, match=r"d_model must be one of None .*, got 8"):
        fla.from_layer(name, weights, **{**config, "d_model": 8})
    with pytest.raises(ArgumentError, match="num_heads must be a whole number, got"):
        fla.from_layer(name, weights, **{**config, "num_heads": 3})
    with pytest.raises(ArgumentError, match=r"must be one that fla has the layer of, got LSTM"):
        fla.to_layer(LSTM(8))
    with pytest.raises(ArgumentError, match="norm must be 'rms' in a mixer as fla's Gated"):
        fla.to_layer(GLA(8, n_heads=2, gate_bias=False))
    with pytest.raises(ArgumentError, match="theta must be zero where fla has no weights"):
        fla.to_layer(HGRN(8, gate="silu", norm="rms", norm_eps=5e-6))
    with pytest.raises(ArgumentError, match="heads of the same key must share these weights"):
        fla.to_layer(MomentumDeltaNet(8, n_heads=4, key_heads=2))
    _, config, weights = fla.to_layer(ABC(8, n_heads=2))
    with pytest.raises(ArgumentError, match="clamp_min must be one of -32"):
        fla.from_layer("ABCAttention", weights, **{**config, "clamp_min": -1})
