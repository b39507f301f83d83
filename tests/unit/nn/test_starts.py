"""How gates start: their distributions, the refine gate, and every layer that has the words."""

import inspect
import re
from typing import get_args

import pytest
import torch
from scipy.stats import kstest

from linrnn import mixers
from linrnn.errors import LinrnnError
from linrnn.nn.starts import GATES, check_gates, refined, start_gates


def test_memories_of_chrono_are_uniform_up_to_t_max():
    b, against = torch.empty(5000), torch.empty(5000)
    start_gates("chrono", 500, b, against)
    memory = 1 / (1 - torch.sigmoid(b.double()))
    assert kstest((memory - 2) / 498, "uniform").pvalue > 0.01
    torch.testing.assert_close(against, -b)
    start_gates("chrono", 3, b)
    assert 2 <= 1 + b.exp().min() < 1 + b.exp().max() <= 3


@pytest.mark.parametrize("gates", ["uniform", "ur"])
def test_gates_start_uniform(gates):
    b, against = torch.empty(5000), torch.empty(5000)
    start_gates(gates, None, b, against)
    f = torch.sigmoid(b.double())
    assert kstest((f - 2e-4) / (1 - 4e-4), "uniform").pvalue > 0.01
    torch.testing.assert_close(against, -b)
    one = torch.empty(1)
    start_gates(gates, None, one)
    assert one == 0  # of a single channel in the middle


@pytest.mark.parametrize("gates", ["plain", "refine"])
def test_others_leave_biases_as_they_are(gates):
    b = torch.full((3,), 7.0)
    start_gates(gates, None, b)
    assert (b == 7).all()


def test_refined_gate_is_the_papers_and_precise_at_both_ends():
    f, r = torch.meshgrid(*(torch.linspace(-30, 30, 41, dtype=torch.float64),) * 2, indexing="ij")
    F, R = f.sigmoid(), r.sigmoid()
    g = refined(f, r)
    torch.testing.assert_close(g.sigmoid(), R * (1 - (1 - F) ** 2) + (1 - R) * F**2)
    torch.testing.assert_close(refined(f, torch.zeros_like(f)), f)
    low, high = F**2, F * (1 + (-f).sigmoid())
    assert (g.sigmoid() >= low * (1 - 1e-12)).all()
    assert (g.sigmoid() <= high * (1 + 1e-12)).all()
    rough = refined(f.float(), r.float()).double()
    torch.testing.assert_close(rough, g, rtol=1e-5, atol=1e-5)  # logits, not gates that saturate


def with_option(name):
    """Layers that have an option; one of this name with other words is none of these."""
    found = {m: inspect.signature(mixers.load(m)).parameters.get(name) for m in mixers.names()}
    return [m for m, x in found.items() if x is not None and (name != "gates" or "t_max" in _of(m))]


def _of(mixer):
    return inspect.signature(mixers.load(mixer)).parameters


@pytest.mark.parametrize("name", with_option("gates"))
def test_every_layer_with_gates_learns_from_every_start(name):
    """Chrono's biases show in the parameters, and gradients reach all of them."""
    known = get_args(inspect.signature(mixers.load(name)).parameters["gates"].annotation)
    assert {"plain", "chrono", "uniform"} <= {*known} <= {*GATES}
    for gates in known:
        torch.manual_seed(0)
        t_max = 99 if gates == "chrono" else None
        bias = {"bias": True} if name in with_option("bias") else {}
        layer = mixers.build(name, 6, {"gates": gates, "t_max": t_max, **bias})
        y, _ = layer(torch.randn(3, 10, 6))
        y.square().mean().backward()
        assert all(p.grad.abs().max() > 0 for p in layer.parameters()), gates
        largest = max(float(p.detach().abs().max()) for p in layer.parameters())
        assert largest > 3 or gates != "chrono"


def test_the_page_names_every_layer_that_has_them(root):
    page = (root / "docs" / "gates.md").read_text(encoding="utf-8")
    found = {}
    for name in sorted({*with_option("gates"), *with_option("learn_initial")}):
        options = inspect.signature(mixers.load(name)).parameters
        words = get_args(options["gates"].annotation) if name in with_option("gates") else ()
        found[name] = (" ".join(words), "yes" if "learn_initial" in options else "")
    rows = re.findall(r"^\| (\w+) \| ?(.*?) \| (\w*) ?\|$", page, re.MULTILINE)
    assert {name: said for name, *said in rows if name != "layer"} == {
        name: [*said] for name, said in found.items()
    }
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(examples[0], "gates.md", "exec"), {})


@pytest.mark.parametrize("name", with_option("learn_initial"))
def test_every_learned_start_is_of_one_kind(name):
    layer = mixers.build(name, 4, {"learn_initial": True})
    assert layer.learned is not None
    plain = mixers.build(name, 4)
    new = {n for n, _ in layer.named_parameters()} - {n for n, _ in plain.named_parameters()}
    assert {*layer.learned.names} <= new
    for parameter in new:
        assert getattr(layer, parameter).shape == (4,)


BAD = [
    (("chrono", None), "t_max must be at least 2 for gates='chrono', got None"),
    (("chrono", 1), "t_max must be at least 2 for gates='chrono', got 1"),
    (("ur", 9), "t_max must be None for gates='ur', got 9"),
    (("none", None), "no here gates named 'none'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("given", "message"), BAD)
def test_errors_say_what_to_do(given, message):
    with pytest.raises(LinrnnError, match=message):
        check_gates("here", *given)
