# %% [markdown]
# # A first layer
#
# After this page you can run a recurrent layer on whole sequences and step by step, and train a model of it. The layer
# is an LRU. Its state is a linear recurrence, so it reads a whole sequence in parallel.

# %%
import torch

from linrnn.mixers import LRU

layer = LRU(d_model=4, d_state=16)
x = torch.randn(1, 200, 4)  # (batch, time, channels)
y, state = layer(x)
y.shape, state.shape

# %% [markdown]
# The layer returns its outputs and the state after the last step. The state is all it knows about the
# past, and the next step starts from it. Step by step, the same inputs give the same outputs, up to
# rounding:

# %%
steps, state = [], layer.init_state(1)
with torch.no_grad():
    for t in range(200):
        y_t, state = layer.step(x[:, t], state)
        steps.append(y_t)

(torch.stack(steps, dim=1) - y).abs().max().item()

# %% [markdown]
# ## Train a model
#
# The input is the sum of two sines of random amplitude and phase, and noise. The target is the slower
# sine. A `SequenceModel` stacks layers with norms, gates and skip connections around them.

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

plt.plot(time, noisy[0], color="#999999", linewidth=0.8, linestyle="-", label="input")
plt.plot(time, slow[0], label="target")
plt.plot(time, heard[0], label="prediction")
plt.xlabel("time")
plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
plt.show()

# %% [markdown]
# The plain alternative is a moving average, here with the best of four decays:

# %%
from linrnn.ops import linear_scan

noisy, slow = mixtures(200)
with torch.no_grad():
    ours = (model(noisy)[0] - slow)[:, 50:].square().mean().item()
averages = []
for decay in (0.5, 0.7, 0.8, 0.9):
    average, _ = linear_scan(torch.tensor([decay]), (1 - decay) * noisy)
    averages.append((average - slow)[:, 50:].square().mean().item())
print(f"mean squared error {ours:.3f}, of the moving average {min(averages):.3f}")
assert ours < min(averages)

# %% [markdown]
# Neither sees the future: an output depends only on earlier inputs. So both can run on a live signal:
# see [Streaming](streaming.md).
