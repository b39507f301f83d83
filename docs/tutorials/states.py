# %% [markdown]
# # States in and out
#
# Every layer takes a state and returns one. With that a long series is trained in pieces, a forecast
# goes on where the history ended, and several futures start from one past.

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
# The state is a tree of tensors, with the batch first:

# %%
[tuple(part.shape) for part in leaves(state)]

# %% [markdown]
# `linrnn.state` has what one does with such a tree. One row of it, three times over, is one past with
# three futures:

# %%
past = select(state, [0])
futures = torch.randn(3, 20, 1)
answers, _ = model(futures, concat([past] * 3))
answers.shape

# %% [markdown]
# A series too long to be trained in one piece: the state goes on, its history does not.

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
