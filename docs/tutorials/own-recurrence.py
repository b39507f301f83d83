# %% [markdown]
# # Your own recurrence
#
# A neuron that leaks: it adds up its input, forgets a little at each step, and when it comes over a
# threshold it fires and starts again, softly so that there is a gradient. No library has this one.
# As a function of one step it is four lines:

# %%
import torch

from linrnn.cells import cell
from linrnn.ops import cell_scan, explain


@cell(state="v", constant="leak threshold")
def leaky(v, u, leak, threshold):
    charged = leak * v + u
    spike = torch.sigmoid(10 * (charged - threshold))
    return spike, charged - spike * threshold  # what is given out, and the next state


# %% [markdown]
# `cell_scan` runs it along time, for a batch, from any state, forward and backward.

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
# How it is computed is chosen for you, and `explain` says what was chosen and why:

# %%
print(explain(cell_scan, leaky, u=u, leak=leak, threshold=threshold))

# %% [markdown]
# [The guide](../own-recurrence.md) makes a layer of such a function, which then trains, streams and
# is exported as any other.
