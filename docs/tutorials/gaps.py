# %% [markdown]
# # A series with gaps
#
# A wave is looked at now and then, and we want to know how fast it rises. From heights alone nobody
# can tell; with the time between two looks it is easy. `dt` is that time, and layers that know time
# take it.

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
plt.plot(when, slope[0], marker="o", linestyle="none", label="how fast it rises")
plt.plot(when, guess[0], label="told the time")
plt.plot(when, blind_guess[0], label="not told")
plt.xlabel("time")
plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
plt.show()

# %% [markdown]
# [Series with gaps](../irregular.md) says which layers take `dt` and what each makes of a gap.
