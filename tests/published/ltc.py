"""LTC and the package ncps, whose names of parameters are the same."""

import torch

from linrnn.mixers import LTC
from published.case import Case, compare, copies, fill, waves


def _layer(positive, **options):
    from ncps import torch as ncps

    theirs = ncps.LTC(4, 4, **options).double()
    ours = LTC(4, positive=positive, dtype=torch.float64)
    fill(list(ours.parameters()))
    with torch.no_grad():
        for name in ("w", "sensory_w", "cm", "gleak"):
            ours.get_parameter(name).abs_().add_(0.1)
    leaves = copies(ours)
    weights = {f"rnn_cell.{name}": weight for name, weight in leaves.items()}
    synapses = ("sparsity_mask", "sensory_sparsity_mask")
    weights |= {f"rnn_cell.{n}": getattr(theirs.rnn_cell, n) for n in synapses}
    theirs.rnn_cell._params = Parameters(theirs.rnn_cell)

    def read(x):
        return torch.func.functional_call(theirs, weights, (x, torch.zeros(len(x), 4).double()))[0]

    return compare(ours, read, waves(2, 17, 4), leaves)


class Parameters:
    """The parameters by name as they are now; the cell keeps those that it was made with."""

    def __init__(self, cell):
        self.cell = cell

    def __getitem__(self, name):
        return getattr(self.cell, name)


SOURCE = "ncps 1.0.1, ncps.torch.LTC"
SPARSE = "its masks of single synapses and its readout of motor neurons are no option here"
MIXED = "an LSTM whose state is the state of the cell too is no option here"
CASES = [
    Case("ltc", SOURCE, "default", "layer", lambda: _layer("softplus"), 1e-12),
    Case(
        "ltc",
        SOURCE,
        "implicit_param_constraints=False",
        "layer",
        lambda: _layer("clip", implicit_param_constraints=False),
        1e-12,
    ),
    Case("ltc", SOURCE, "units=AutoNCP(...)", "layer", None, note=SPARSE),
    Case("ltc", SOURCE, "mixed_memory=True", "layer", None, note=MIXED),
]
