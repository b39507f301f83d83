# %% [markdown]
# # Episodes in one stream
#
# After this page you can train on one long sequence that contains many episodes, such as those of an agent or the
# sessions of a log. `reset` marks the first step of each episode. The state is cleared there, so no
# episode influences the next.

# %%
import torch

from linrnn.mixers import MinGRU

layer = MinGRU(d_model=4)
x = torch.randn(1, 90, 4)
begins = torch.zeros(1, 90, dtype=torch.bool)
begins[0, [30, 70]] = True

with torch.no_grad():
    y, state = layer(x, reset=begins)
    alone, _ = layer(x[:, 30:70])
(y[:, 30:70] - alone).abs().max().item()

# %% [markdown]
# A change in the first episode does not affect the later ones. Without `reset` it would, for as long as
# the layer remembers:

# %%
import matplotlib.pyplot as plt

other = x.clone()
other[:, :30] += 3.0
with torch.no_grad():
    marked = (layer(other, reset=begins)[0] - y).abs().amax(-1)[0]
    unmarked = (layer(other)[0] - layer(x)[0]).abs().amax(-1)[0]

plt.semilogy(unmarked + 1e-9, label="without reset")
plt.semilogy(marked + 1e-9, label="with reset")
plt.xlabel("step")
plt.ylabel("change of the output")
plt.legend()
plt.show()

# %% [markdown]
# The plain alternative is a loop that starts each episode with a new state, `layer.init_state(1)`. It
# gives the same numbers, one step at a time:

# %%
steps = []
with torch.no_grad():
    state = layer.init_state(1)
    for t in range(90):
        state = layer.init_state(1) if begins[0, t] else state
        y_t, state = layer.step(x[:, t], state)
        steps.append(y_t)

(torch.stack(steps, 1) - y).abs().max().item()
