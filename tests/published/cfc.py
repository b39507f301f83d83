"""CfC and the package ncps, in whose modules a cell is read step by step."""

import torch

from linrnn.mixers import CfC
from published.case import Case, compare, copies, fill, waves

NAMES = {"ff1": "heads.g", "ff2": "heads.h", "time_a": "heads.a", "time_b": "heads.b"}


def theirs_of(weights, cell):
    """The names and shapes of the cell of ncps, of weights by our names."""
    names = {}
    for name, p in cell.named_parameters():
        stem, _, kind = name.rpartition(".")
        if stem.startswith("backbone."):  # where every other module is an activation
            stem = f"backbone.{int(stem.removeprefix('backbone.')) // 2}"
        ours = f"{NAMES.get(stem, stem)}.{kind}" if stem else kind
        names[name] = weights[ours].view_as(p)
    return names


def _layer(**options):
    from ncps import torch as ncps

    theirs = ncps.CfC(4, 4, **options).double()
    ours = CfC(4, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    leaves = copies(ours)
    weights = theirs_of(leaves, theirs.rnn_cell)
    weights = {f"rnn_cell.{name}": weight for name, weight in weights.items()}

    def read(x):
        return torch.func.functional_call(theirs, weights, (x, torch.zeros(len(x), 4).double()))[0]

    return compare(ours, read, waves(2, 17, 4), leaves)


SOURCE = "ncps 1.0.1, ncps.torch.CfC"
SPARSE = "its masks of single synapses and its layers of neurons are no option here"
MIXED = "an LSTM whose state is the state of the cell too is no option here"
CASES = [
    Case("cfc", SOURCE, "default", "layer", _layer, 1e-12),
    Case("cfc", SOURCE, "mode='pure'", "layer", lambda: _layer(mode="pure"), 1e-12),
    Case("cfc", SOURCE, "mode='no_gate'", "layer", lambda: _layer(mode="no_gate"), 1e-12),
    Case(
        "cfc",
        SOURCE,
        "backbone_units=7, backbone_layers=2, activation='silu'",
        "layer",
        lambda: _layer(backbone_units=7, backbone_layers=2, activation="silu"),
        1e-12,
    ),
    Case("cfc", SOURCE, "units=AutoNCP(...)", "layer", None, note=SPARSE),
    Case("cfc", SOURCE, "mixed_memory=True", "layer", None, note=MIXED),
]
