# %% [markdown]
# # A first layer
#
# A recurrent layer reads a sequence and keeps a state. Here it is an LRU, whose state is a linear
# recurrence: so it can read a whole sequence at once, and also go on one step at a time.

# %%
import torch

from linrnn.mixers import LRU

layer = LRU(d_model=4, d_state=16)
x = torch.randn(1, 200, 4)  # (batch, time, channels)
y, state = layer(x)
y.shape, state.shape

# %% [markdown]
# The second thing returned is the state after the last step. It is all that the layer knows of the
# past, and it is where a step goes on. Fed one at a time, the same inputs give the same outputs, up
# to rounding:

# %%
steps, state = [], layer.init_state(1)
with torch.no_grad():
    for t in range(200):
        y_t, state = layer.step(x[:, t], state)
        steps.append(y_t)

(torch.stack(steps, dim=1) - y).abs().max().item()

# %% [markdown]
# ## Teach it something
#
# Two sines of unknown height and phase come in, mixed with noise, and the slower one is asked for.
# A `SequenceModel` stacks layers with the usual norms, gates and skips around them.

# %%
from linrnn import SequenceModel

time = torch.arange(200) / 20


def mixtures(count):
    height, phase = 0.5 + torch.rand(2, count, 1), 6.28 * torch.rand(2, count, 1)
    slow = height[0] * torch.sin(time + phase[0])
    fast = height[1] * torch.sin(5 * time + phase[1])
    return (slow + fast + 0.2 * torch.randn(count, 200))[..., None], slow[..., None]


model = SequenceModel(1, 1, mixer="lru", d_model=16, n_layers=2, norm="layer", pool="none")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for _ in range(100):
    noisy, slow = mixtures(16)
    loss = (model(noisy)[0] - slow)[:, 50:].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

print(f"first {losses[0]:.3f}, last {losses[-1]:.3f}")
assert losses[-1] < losses[0] / 5

# %%
import matplotlib.pyplot as plt

noisy, slow = mixtures(1)
with torch.no_grad():
    heard = model(noisy)[0]

plt.plot(time, noisy[0], color="#999999", linewidth=0.8, linestyle="-", label="what comes in")
plt.plot(time, slow[0], label="the slow sine")
plt.plot(time, heard[0], label="what the model says")
plt.xlabel("time")
plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
plt.show()

# %% [markdown]
# The model never sees the future: what it says at a time depends on what came before, as a filter
# that runs along does. [Streaming](streaming.md) lets it do that.
