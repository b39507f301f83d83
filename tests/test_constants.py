"""Published constants and tuned defaults are data: as the table has them, or it changes too."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from linrnn.nn import GatedMLP

GOLDEN = Path(__file__).parent / "golden"
HOW = "If that is meant, run `python tests/golden/constants.py` and say why in the changelog."


def load():
    spec = importlib.util.spec_from_file_location("constants", GOLDEN / "constants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


constants = load()
WRITTEN = json.loads(constants.TABLE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found():
    return json.loads(json.dumps(constants.table()))


def test_the_table_has_every_entry_of_the_catalogues(found):
    assert found.keys() == WRITTEN.keys()
    for part, entries in WRITTEN.items():
        assert found[part].keys() == entries.keys(), f"{part}: {HOW}"


@pytest.mark.parametrize("part", sorted(WRITTEN))
def test_defaults_and_starts_are_those_of_the_table(part, found):
    wrong = [
        line
        for name in WRITTEN[part].keys() & found[part].keys()
        for line in differences(WRITTEN[part][name], found[part][name], f"{part} {name}")
    ]
    assert not wrong, "\n".join([*wrong[:20], HOW])


def test_every_mixer_learner_and_recipe_names_its_source():
    for part in ("mixers", "learners", "recipes"):
        assert all(entry["source"] for entry in WRITTEN[part].values())


def differences(written, found, where):
    """Lines that say what is another; of starts, what sampling cannot explain."""
    if isinstance(written, dict) and isinstance(found, dict):
        names = written.keys() | found.keys()
        absent = "is not there"
        for name in sorted(names):
            pair = written.get(name, absent), found.get(name, absent)
            yield from differences(*pair, f"{where} {name}")
    elif constants.is_start(written) and constants.is_start(found):
        if not constants.alike(written, found):
            yield f"{where}: the table has {written}, the tree {found}"
    elif written != found:
        yield f"{where}: the table has {written!r}, the tree {found!r}"


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        ([[8, 8], 0.0, 0.1, -0.2, 0.2], [[8, 8], 0.0, 0.11, -0.22, 0.22]),
        ([[8], 1.0, 0.0, 1.0, 1.0], [[8], 1.1, 0.0, 1.1, 1.1]),
        ([[8], 0.0, 0.0, 0.0, 0.0], [[8], 1e-3, 0.0, 1e-3, 1e-3]),
        ([[8], 0.0, 0.1, -0.2, 0.2], [[4], 0.0, 0.1, -0.2, 0.2]),
        (16.0, 8.0),
        ({"dropout": 0.2}, {"dropout": 0.3}),
        ({"dropout": 0.2}, {}),
    ],
)
def test_a_change_is_seen(written, changed):
    assert not list(differences(written, written, ""))
    assert list(differences(written, changed, ""))


@pytest.mark.parametrize("depth", [1, 6])
@pytest.mark.parametrize(
    ("init", "inner", "outer"),
    [
        ("lecun", lambda d, _: 1 / d, lambda _d, e, n: 2 / n / e),
        ("small", lambda d, _: 0.4 / d, lambda d, _, n: 4 / n**2 / d),
        ("small_inner", lambda d, _: 0.4 / d, lambda _d, e, n: 4 / n**2 / e),
    ],
)
def test_gated_networks_start_with_the_declared_variances(init, inner, outer, depth):
    d, e = 96, 200
    torch.manual_seed(0)
    part = GatedMLP(d, d_inner=e, init=init, n_layers=depth)
    for linear, variance in (
        (part.gate, inner(d, e)),
        (part.up, inner(d, e)),
        (part.down, outer(d, e, depth)),
    ):
        # 19,200 numbers: five standard errors of a variance are 5 %
        assert linear.weight.var().item() == pytest.approx(variance, rel=0.05)
        assert abs(linear.weight.mean().item()) < 5 * (variance / linear.weight.numel()) ** 0.5
        assert not linear.bias.any()
