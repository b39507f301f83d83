# %% [markdown]
# # A series with gaps
#
# After this page you can train a layer on samples at irregular times. The example is a wave, sampled at random times,
# and the model predicts its slope. Values alone do not determine the slope; with the time between samples
# the task is easy. Pass these times as `dt` to a layer that reads them.

# %%
import torch

from linrnn import RNN


def waves(count, steps=40):
    dt = 0.1 + 2 * torch.rand(count, steps)
    phase = dt.cumsum(1) + 6.28 * torch.rand(count, 1)
    return phase.sin()[..., None], dt, phase.cos()[..., None]


def trained(timed):
    torch.manual_seed(0)
    rnn, head = RNN("cfc", 1, 16, batch_first=True), torch.nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(120):
        height, dt, slope = waves(32)
        guess = head(rnn(height, dt=dt if timed else None)[0])
        loss = (guess - slope)[:, 5:].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rnn, head, loss.item()


rnn, head, with_time = trained(timed=True)
blind, blind_head, without = trained(timed=False)
assert with_time < without / 2
print(f"mean squared error {with_time:.3f} with the times, {without:.3f} without")

# %%
import matplotlib.pyplot as plt

height, dt, slope = waves(1)
with torch.no_grad():
    guess = head(rnn(height, dt=dt)[0])
    blind_guess = blind_head(blind(height)[0])

when = dt[0].cumsum(0)
plt.plot(when, slope[0], marker="o", linestyle="none", label="true slope")
plt.plot(when, guess[0], label="with times")
plt.plot(when, blind_guess[0], label="without times")
plt.xlabel("time")
plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
plt.show()

# %% [markdown]
# The plain alternative for any other layer is to append the time as an input channel. A GRU does that
# here:

# %%
torch.manual_seed(0)
gru, gru_head = torch.nn.GRU(2, 16, batch_first=True), torch.nn.Linear(16, 1)
optimizer = torch.optim.Adam([*gru.parameters(), *gru_head.parameters()], lr=1e-2)
for _ in range(120):
    height, dt, slope = waves(32)
    guess = gru_head(gru(torch.cat([height, dt[..., None]], -1))[0])
    loss = (guess - slope)[:, 5:].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"mean squared error of a GRU with the time as a channel {loss.item():.3f}")

# %% [markdown]
# That is nearly as good here, so try it first with a layer that you already have.
# [Series with gaps](../irregular.md) lists the layers that read `dt`, and what each computes from it.
