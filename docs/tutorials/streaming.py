# %% [markdown]
# # Streaming
#
# A sensor never stops. A model with a state of fixed size need not either: each new number costs the
# same, and memory stays as it is. A `Session` holds the state of one stream.

# %%
import torch

from linrnn import SequenceModel
from linrnn.streaming import Session

model = SequenceModel(1, 1, mixer="lru", d_model=16, n_layers=2, norm="layer", pool="none").eval()
session = Session(model)
session.feed([0.5])

# %% [markdown]
# Whatever arrives may be fed: one number, or a thousand at once, read in parallel. How a stream is
# cut does not matter.

# %%
x = torch.randn(1000, 1)
whole = Session(model).feed(x)
session = Session(model)
pieces = [session.feed(piece) for piece in x.split([1, 10, 389, 600])]
(torch.cat(pieces) - whole).abs().max().item()

# %% [markdown]
# Does a late number cost more than an early one? Here is the time of each of 2,000 steps.

# %%
import statistics
import time

import matplotlib.pyplot as plt

session, took = Session(model), []
for value in torch.randn(2000, 1):
    before = time.perf_counter()
    session.feed(value)
    took.append(1e6 * (time.perf_counter() - before))

medians = [statistics.median(took[i : i + 50]) for i in range(0, 2000, 50)]
plt.plot(range(0, 2000, 50), medians)
plt.ylim(0, 2 * max(medians))
plt.xlabel("position in the stream")
plt.ylabel("median of 50 steps [µs]")
plt.show()

# %% [markdown]
# And it may stop and go on elsewhere: the state is a small file.

# %%
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "sensor.state")
    session.save(path)
    elsewhere = Session(model)
    elsewhere.load(path)
    print(path.stat().st_size, "bytes")

assert torch.equal(elsewhere.feed([0.1]), session.feed([0.1]))
