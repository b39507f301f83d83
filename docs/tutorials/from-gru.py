# %% [markdown]
# # From nn.GRU
#
# A script that has an `nn.GRU` need not change much. First, the same layer with the same numbers:

# %%
import torch
from torch import nn

import linrnn

gru = nn.GRU(8, 32, num_layers=2, batch_first=True)
same = linrnn.RNN.from_torch(gru)
x = torch.randn(4, 100, 8)
(same(x)[0] - gru(x)[0]).abs().max().item()

# %% [markdown]
# Then another one in its place. A GRU's gates read its own output, so it has to go step by step; a
# minGRU's read the input alone, and all steps are computed at once.

# %%
import statistics
import time

import matplotlib.pyplot as plt


def milliseconds(layer, steps):
    x = torch.randn(4, steps, 8)
    took = []
    for _ in range(3):
        before = time.perf_counter()
        layer(x)[0].sum().backward()
        took.append(1e3 * (time.perf_counter() - before))
    return statistics.median(took)


lengths = [64, 128, 256, 512, 1024]
for name, layer in (
    ("nn.GRU", gru),
    ("linrnn.RNN('mingru')", linrnn.RNN("mingru", 8, 32, num_layers=2, batch_first=True)),
):
    plt.loglog(lengths, [milliseconds(layer, n) for n in lengths], marker="o", label=name)
plt.xlabel("steps of a sequence")
plt.ylabel("forward and backward [ms]")
plt.legend()
plt.show()

# %% [markdown]
# These times are of the machine that built this page; [How fast the layers are](../layers.md) has
# careful ones. [In place of nn.GRU](../drop-in.md) says what is the same and what is not.
