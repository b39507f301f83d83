"""The benchmark of language models: everyone computes the same function and carries its state."""

import importlib
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch):
    """Import a file of benchmarks/ as its scripts do."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.mark.parametrize("kind", ["rwkv", "mamba"])
def test_everyone_says_the_same_and_remembers(module, kind):
    pytest.importorskip("mambapy")
    decoders = module("_decoders")
    everyone = decoders.build(kind, decoders.SIZES["tiny"])
    assert tuple(everyone) == decoders.NAMES[kind]
    assert len({d.parameters for d in everyone.values()}) == 1
    module("decode").check_agreement(everyone)
    for name, decoder in everyone.items():
        step = decoder.start(torch.tensor([[1, 2, 3]]))
        first, second = step(), step()
        assert first.shape == second.shape == (1, 64), name
        assert not torch.equal(first, second), f"{name} forgets"


def test_who_differs_is_noticed(module):
    decoders = module("_decoders")
    everyone = decoders.build("rwkv", decoders.SIZES["tiny"])
    ours, theirs = everyone.values()
    wrong = theirs._replace(prefill=lambda ids: 1.01 * theirs.prefill(ids))
    with pytest.raises(AssertionError):
        module("decode").check_agreement({"ours": ours, "theirs": wrong})


def test_ratios_are_judged(module):
    timing = module("_timing").Timing
    times = {
        "step": {"linrnn RWKV-4": timing(0.01, 5), "transformers RWKV": timing(0.029, 5)},
        "prefill": {"linrnn RWKV-4": timing(0.1, 5), "transformers RWKV": timing(0.31, 5)},
    }
    (row,) = module("decode").ratio_rows("rwkv", "10M", times)
    assert row[1:] == ["2.9× (NOT met)", "3.1× (met)"]


def test_ratios_say_what_is_to_be_had(module):
    timing, bound = module("_timing").Timing, module("_decoders").BOUND
    times = {"linrnn RWKV-4": 0.01, "transformers RWKV": 0.02, bound: 0.008}
    found = {"step": {name: timing(seconds, 5) for name, seconds in times.items()}}
    (row,) = module("decode").ratio_rows("rwkv", "130M", found)
    assert row[1:] == ["2.0× (NOT met, at most 2.5×)"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bound_reads_every_matrix_once(module, dtype):
    decoders = module("_decoders")
    model = decoders.our_model("rwkv", decoders.SIZES["tiny"])
    least = decoders.bound(model, dtype)
    matrices = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert least["step"]().shape == (len(matrices),)
    least["prefill"](torch.zeros(1, 5, dtype=torch.int64))
