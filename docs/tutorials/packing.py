# %% [markdown]
# # Sequences of many lengths
#
# Batches with sequences of different lengths are either packed one after the other, which wastes
# nothing, or padded. This page shows both.
#
# ## Packing
#
# With `cu_seqlens`, the recurrence starts anew at each sequence:

# %%
import torch

from linrnn.ops import linear_scan

lengths = torch.tensor([3, 50, 7])
offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
a, b = torch.full((4,), 0.9), torch.randn(1, 60, 4)
h, last = linear_scan(a, b, cu_seqlens=offsets)
last.shape  # a row for each sequence

# %% [markdown]
# Alone, the second one gives the same:

# %%
alone, _ = linear_scan(a, b[:, 3:53])
(alone - h[:, 3:53]).abs().max().item()

# %% [markdown]
# What it looks like: without the offsets the past of one sequence leaks into the next.

# %%
import matplotlib.pyplot as plt

leaking, _ = linear_scan(a, b)
plt.plot(h[0, :, 0], label="packed")
plt.plot(leaking[0, :, 0], label="as one sequence")
for place in offsets[1:-1].tolist():
    plt.axvline(place, color="#999999", linewidth=0.8)
plt.xlabel("step")
plt.legend()
plt.show()

# %% [markdown]
# A `PackedSequence` of PyTorch goes into `linrnn.RNN` as it goes into `torch.nn.GRU`:

# %%
from torch.nn.utils.rnn import pack_sequence

from linrnn import RNN

packed = pack_sequence([torch.randn(n, 4) for n in (50, 7, 3)])
output, h_n = RNN("mingru", 4, 8)(packed)
type(output).__name__, tuple(h_n.shape)

# %% [markdown]
# ## Padding
#
# A model also takes padded rows. Pass their `lengths`. What the padding contains changes nothing:

# %%
from linrnn import SequenceModel

model = SequenceModel(4, 2, mixer="mingru", d_model=8, n_layers=1).eval()
padded = torch.randn(2, 50, 4)
rows = torch.tensor([50, 30])
y, _ = model(padded, lengths=rows)
padded[1, 30:] = float("nan")
again, _ = model(padded, lengths=rows)
torch.equal(again, y)
