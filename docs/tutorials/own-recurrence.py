# %% [markdown]
# # Your own recurrence
#
# After this page you can write a recurrence of your own as a function of one step, and run it fast over sequences. The
# example is a leaky neuron. It adds up its input and forgets a little at each step. Above a threshold it
# fires and resets, smoothly, so that there is a gradient.

# %%
import torch

from linrnn.cells import cell
from linrnn.ops import cell_scan, explain


@cell(state="v", constant="leak threshold")
def leaky(v, u, leak, threshold):
    charged = leak * v + u
    spike = torch.sigmoid(10 * (charged - threshold))
    return spike, charged - spike * threshold  # output, next state


# %% [markdown]
# `cell_scan` runs it over a batch of sequences, from any state, with gradients.

# %%
u = 0.2 * torch.rand(1, 100, 3)  # (batch, time, channels)
leak = torch.tensor([0.9, 0.95, 0.99], requires_grad=True)
threshold = torch.ones(3)
spikes, last = cell_scan(leaky, u=u, leak=leak, threshold=threshold)
spikes.sum().backward()
leak.grad

# %%
import matplotlib.pyplot as plt

for channel, rate in enumerate(leak.tolist()):
    plt.plot(spikes[0, :, channel].detach() + 1.2 * channel, label=f"keeps {rate:.2f} a step")
plt.xlabel("step")
plt.yticks([])
plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
plt.show()

# %% [markdown]
# `explain` shows how this call is computed, and why:

# %%
print(explain(cell_scan, leaky, u=u, leak=leak, threshold=threshold))

# %% [markdown]
# The plain alternative is a loop in Python. It gives the same numbers:

# %%
import time

v, outputs = torch.zeros(1, 3), []
with torch.no_grad():
    started = time.perf_counter()
    for t in range(u.shape[1]):
        spike, v = leaky(v, u[:, t], leak, threshold)
        outputs.append(spike)
    loop = time.perf_counter() - started
    cell_scan(leaky, u=u, leak=leak, threshold=threshold)
    started = time.perf_counter()
    spikes, _ = cell_scan(leaky, u=u, leak=leak, threshold=threshold)
    scan = time.perf_counter() - started
assert torch.allclose(torch.stack(outputs, 1), spikes, atol=1e-5)
print(f"{1e3 * scan:.2f} ms, a loop {1e3 * loop:.2f} ms")

# %% [markdown]
# [The guide](../own-recurrence.md) turns such a function into a layer, which trains, streams and exports
# like every other.
