# %% [markdown]
# # Sensors with gaps
#
# After this page you can fill gaps in the readings of several sensors. The example has three: outside temperature,
# inside temperature, and heating power, every quarter of an hour. A gateway fails at times, and then a
# sensor has no readings for hours.

# %%
import numpy as np

from linrnn import RecurrentImputer

rng = np.random.default_rng(0)
steps = np.arange(96 * 21)
outside = 8 + 6 * np.sin(2 * np.pi * steps / 96) + np.cumsum(rng.normal(0, 0.05, len(steps)))
power = np.clip(20 - outside, 0, None) + rng.normal(0, 0.3, len(steps))
inside = (
    20 + np.convolve(power - power.mean(), np.exp(-np.arange(40) / 12) / 40, "full")[: len(steps)]
)
readings = np.stack([outside, inside, power], 1)  # (time, sensors)

silent = np.zeros(readings.shape, dtype=bool)
for sensor in range(3):
    for begin in rng.integers(100, len(steps) - 100, 12):
        silent[begin : begin + rng.integers(4, 25), sensor] = True
table = np.where(silent, np.nan, readings)
print(f"{silent.mean():.1%} of the readings are missing")

# %% [markdown]
# A scikit-learn transformer fills the gaps from the readings before and after, and from the other sensors.

# %%
filled = RecurrentImputer().fit_transform(table)

# %%
import matplotlib.pyplot as plt

begin = int(np.flatnonzero(silent[:, 0])[0]) - 30
shown = slice(begin, begin + 90)
plt.plot(steps[shown], readings[shown, 0], linestyle=":", label="what it was")
plt.plot(steps[shown], np.where(silent, filled, np.nan)[shown, 0], marker=".", label="filled")
plt.plot(steps[shown], table[shown, 0], label="what was read")
plt.xlabel("step")
plt.ylabel("outside")
plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
plt.show()

# %% [markdown]
# The plain alternatives are linear interpolation and the last value.

# %%
import pandas as pd

frame = pd.DataFrame(table)
others = {
    "ours": filled,
    "a line": frame.interpolate().bfill(),
    "the last value": frame.ffill().bfill(),
}
unit = readings.std(0)
errors = {
    name: float(np.abs((np.asarray(values) - readings) / unit)[silent].mean())
    for name, values in others.items()
}
assert errors["ours"] < errors["a line"]
print(", ".join(f"{name}: {error:.3f}" for name, error in errors.items()), "of a spread")

# %% [markdown]
# [Series in scikit-learn](../scikit-learn.md#gaps) shows where interpolation is as good. To read gaps
# without filling them, use a layer that reads the time between steps: [Series with gaps](gaps.md).
