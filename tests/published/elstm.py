"""eLSTM and the code of its authors, which has no output gate in the layer."""

import torch

from linrnn.mixers import ELSTM
from published.case import fill, golden_cases


def layer():
    ours = ELSTM(6, output_gate=False, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default": layer}
CASES = golden_cases("elstm", "IDSIA/rtrl-elstm@b56cade, QuasiLSTMlayer", LAYERS)
