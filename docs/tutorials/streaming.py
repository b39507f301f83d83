# %% [markdown]
# # Streaming
#
# After this page you can run a model on an endless stream, at a constant cost per value. A `Session` holds the state of
# one stream, whose size is fixed.

# %%
import torch

from linrnn import SequenceModel
from linrnn.streaming import Session

model = SequenceModel(1, 1, mixer="lru", d_model=16, n_layers=2, norm="layer", pool="none").eval()
session = Session(model)
session.feed([0.5])

# %% [markdown]
# You can feed one number, or a thousand at once, which are read in parallel. The split of a stream does
# not change its outputs.

# %%
x = torch.randn(1000, 1)
whole = Session(model).feed(x)
session = Session(model)
pieces = [session.feed(piece) for piece in x.split([1, 10, 389, 600])]
(torch.cat(pieces) - whole).abs().max().item()

# %% [markdown]
# A late value costs as much as an early one. Here is the time of each of 2,000 steps:

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
# A session can be saved and continued elsewhere. Its state is a small file:

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
# %% [markdown]
# The plain alternative is to read the whole past again for each new value. It gives the same number, and
# costs more with every step:

# %%
past = torch.randn(1, 2000, 1)
with torch.no_grad():
    before = time.perf_counter()
    again, _ = model(past)
    reread = 1e6 * (time.perf_counter() - before)
session = Session(model)
session.feed(past[0, :-1])
assert torch.allclose(session.feed(past[0, -1:]), again[0, -1:], atol=1e-5)
print(f"at value 2,000: {medians[-1]:.0f} µs by its state, {reread:.0f} µs by reading again")
