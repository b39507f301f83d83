# %% [markdown]
# # Sequences of many lengths
#
# After this page you can put sequences of different lengths into one batch. Packing puts them one after the other and
# wastes no computation. Padding fills short rows up.
#
# ## Packing
#
# With `cu_seqlens`, the recurrence restarts at each sequence:

# %%
import torch

from linrnn.ops import linear_scan

lengths = torch.tensor([3, 50, 7])
offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
a, b = torch.full((4,), 0.9), torch.randn(1, 60, 4)
h, last = linear_scan(a, b, cu_seqlens=offsets)
last.shape  # a row for each sequence

# %% [markdown]
# The plain alternative, one call per sequence, gives the same numbers. Here for the second sequence:

# %%
alone, _ = linear_scan(a, b[:, 3:53])
(alone - h[:, 3:53]).abs().max().item()

# %% [markdown]
# Without the offsets, the state of one sequence leaks into the next:

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
# `linrnn.RNN` accepts a `PackedSequence`, as `torch.nn.GRU` does:

# %%
from torch.nn.utils.rnn import pack_sequence

from linrnn import RNN

packed = pack_sequence([torch.randn(n, 4) for n in (50, 7, 3)])
output, h_n = RNN("mingru", 4, 8)(packed)
type(output).__name__, tuple(h_n.shape)

# %% [markdown]
# ## Padding
#
# A model also accepts padded rows. Pass their `lengths`. The content of the padding has no effect:

# %%
from linrnn import SequenceModel

model = SequenceModel(4, 2, mixer="mingru", d_model=8, n_layers=1).eval()
padded = torch.randn(2, 50, 4)
rows = torch.tensor([50, 30])
y, _ = model(padded, lengths=rows)
padded[1, 30:] = float("nan")
again, _ = model(padded, lengths=rows)
torch.equal(again, y)
