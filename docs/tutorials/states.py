# %% [markdown]
# # States in and out
#
# After this page you can carry the state of a model from one call to the next. With it you can train on a
# long series in pieces, continue a forecast where the history ended, or start several futures from one
# past. Every layer takes a state and returns one.

# %%
import torch

from linrnn import SequenceModel
from linrnn.state import concat, detach, leaves, select

model = SequenceModel(1, 1, mixer="mamba", d_model=8, n_layers=2, norm="layer", pool="none").eval()
x = torch.randn(2, 300, 1)
whole, _ = model(x)
first, state = model(x[:, :100])
second, state = model(x[:, 100:], state)
(torch.cat([first, second], 1) - whole).abs().max().item()

# %% [markdown]
# The plain alternative, reading the whole series at once, gave the same numbers. The state is a tree of
# tensors with the batch as first axis:

# %%
[tuple(part.shape) for part in leaves(state)]

# %% [markdown]
# `linrnn.state` has functions for such trees. Select one row and repeat it three times, to start three
# futures from one past:

# %%
past = select(state, [0])
futures = torch.randn(3, 20, 1)
answers, _ = model(futures, concat([past] * 3))
answers.shape

# %% [markdown]
# Train on a long series in pieces: carry the state, and detach it from its history:

# %%
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
state = None
for piece in torch.randn(2, 400, 1).split(100, dim=1):
    y, state = model(piece, state)
    (y - piece).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    state = detach(state)
