"""Four steps of one head with two channels, on which several implementations agree."""

import torch


def rows(*values):
    """(1, 4, 1, channels) of two channels, or (1, 4, 1) of one number a step."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(0).unsqueeze(2)


Q = rows((1, 0), (0, 1), (1, 1), (1, -1))
K = rows((1, 0), (0.6, 0.8), (0, 1), (0.8, -0.6))
V = rows((1, 2), (3, -1), (-2, 1), (1, 1))
S = rows((0.5, 0.2), (0.1, 0.9), (0.3, 0.3), (0.6, 0.4))
DECAY = rows(0.5, 0.5, 0.8, 0.9)
BETA = rows(0.5, 1, 0.25, 0.75)
DECAYS = rows((0.5, 0.9), (0.8, 0.6), (0.9, 0.7), (0.6, 0.8))
ERASE = rows((0.5, 1), (0.25, 0.75), (1, 0.5), (0.75, 0.25))
WRITE = rows((1, 0.5), (0.5, 1), (0.25, 0.75), (1, 1))


def outputs(*values):
    """The expected outputs, (4, 2)."""
    return torch.tensor(values, dtype=torch.float64).view(4, 2)


def near(o, *values):
    """Equal to golden numbers of six digits."""
    torch.testing.assert_close(o.view(4, 2), outputs(*values), rtol=0, atol=1e-6)
