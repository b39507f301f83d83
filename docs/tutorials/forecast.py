# %% [markdown]
# # A forecast
#
# After this page you can forecast a series with intervals, without training a network. The example is two months of
# hourly values with a daily cycle, a weekly cycle and noise. The states of a bank of linear recurrences
# are the inputs of a regression in closed form.

# %%
import matplotlib.pyplot as plt
import numpy as np

from linrnn import RecurrentForecaster

rng = np.random.default_rng(0)
hours = np.arange(24 * 60)
day, week = np.sin(2 * np.pi * hours / 24), np.sin(2 * np.pi * hours / 168)
load = 20 + 3 * day + 2 * week + 0.5 * rng.standard_normal(len(hours))
past, future = load[:-48], load[-48:]

forecaster = RecurrentForecaster(horizon=48).fit(past)
ahead = forecaster.predict()

# %%
plt.plot(hours[-168:-48], past[-120:], label="the past")
plt.plot(hours[-48:], future, marker=".", linestyle="none", label="what came")
plt.plot(hours[-48:], ahead, label="forecast")
plt.xlabel("hour")
plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
plt.show()

# %% [markdown]
# The plain alternative is to repeat the last two days:

# %%
error, naive = np.abs(ahead - future).mean(), np.abs(past[-48:] - future).mean()
assert error < naive
print(f"mean error {error:.2f}; repeating two days {naive:.2f}; the noise alone {0.5 * 0.798:.2f}")

# %% [markdown]
# [Forecasts](../forecasting.md) explains intervals, updates with new values, and several channels.
