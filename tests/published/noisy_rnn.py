"""NoisyRNN and the code of its authors, in evaluation."""

import torch

from linrnn.mixers import NoisyRNN
from published.case import fill, golden_cases


def layer():
    ours = NoisyRNN(6, noise="code", step_size=0.1, sigma_add=0, sigma_mult=0, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours.eval()


LAYERS = {"default of driver.py, solver='noisy'": layer}
CASES = golden_cases("noisy_rnn", "erichson/NoisyRNN@55ba547, NoisyRNN", LAYERS)
