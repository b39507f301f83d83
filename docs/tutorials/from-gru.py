# %% [markdown]
# # From nn.GRU
#
# After this page you can replace an `nn.GRU` in a script, and compare layers on your data. First, the same layer with
# the same numbers:

# %%
import torch
from torch import nn

import linrnn

gru = nn.GRU(8, 32, num_layers=2, batch_first=True)
same = linrnn.RNN.from_torch(gru)
x = torch.randn(4, 100, 8)
(same(x)[0] - gru(x)[0]).abs().max().item()

# %% [markdown]
# Then a different layer with the same interface. The gates of a GRU read its own output, so it runs step
# by step. Those of a minGRU read only the input, so all steps are computed in parallel.

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
    ("minGRU", linrnn.RNN("mingru", 8, 32, num_layers=2, batch_first=True)),
):
    plt.loglog(lengths, [milliseconds(layer, n) for n in lengths], marker="o", label=name)
plt.xlabel("steps of a sequence")
plt.ylabel("forward and backward [ms]")
plt.legend()
plt.show()

# %% [markdown]
# These times come from the machine that built this page. [How fast the layers are](../layers.md) has
# careful measurements. [Instead of nn.GRU](../drop-in.md) lists what is the same and what differs.
#
# ## Which layer suits your data?
#
# `compare` trains models that differ in one layer on the same data. Each runs in a separate process and
# folder. On the command line this is `linrnn compare`. Here they read 1,797 handwritten digits pixel by
# pixel, for twelve epochs, which takes some seconds.

# %%
import tempfile
from pathlib import Path

from linrnn.compare import Entry, compare
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig


def entry(mixer):
    config = Config(
        task="digits",
        mixer=mixer,
        model=ModelConfig(d_model=32, n_layers=1),
        optim=OptimConfig(lr=0.01),
        train=TrainConfig(epochs=12, batch_size=32, threads=1),
    )
    return Entry(label=mixer, config=config)


folder = tempfile.TemporaryDirectory()
out = Path(folder.name)
rows = compare([entry("gru"), entry("lru")], seeds=[0], out=out)
assert all(row.values for row in rows)
for row in rows:
    print(f"{row.label}: {row.mean:.1%} of the test images are named rightly")

# %% [markdown]
# Accuracy has a cost. Every comparison also writes `costs.svg`, with its numbers in `costs.drawn.csv`:


# %%
class Picture:
    """A file that a notebook shows."""

    def __init__(self, path):
        self.path = path

    def _repr_svg_(self):
        return self.path.read_text(encoding="utf-8")


Picture(out / "costs.svg")

# %% [markdown]
# Every classification run writes the confusion matrix, `confusion.svg`:

# %%
Picture(out / "lru-seed0" / "confusion.svg")

# %% [markdown]
# With one seed, one learning rate and little training, this example does not show which layer is better.
# `seeds=(0, 1, 2)` and `tune=FACTORS` make it fairer. [Which mixer?](../which-mixer.md) has results of
# more seeds. The plain alternative to all of this is the `nn.GRU` you have: keep it where it is fast and
# accurate enough.
