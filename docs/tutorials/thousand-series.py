# %% [markdown]
# # A thousand series at once
#
# After this page you can forecast a thousand series with one call. The example is three years of monthly demand for a
# thousand parts. Some parts are new, and some sell twice a year. For parts with a short past, the
# forecaster uses what worked for the others.

# %%
import numpy as np
import pandas as pd

from linrnn import PanelForecaster

rng = np.random.default_rng(0)
months = pd.date_range("2021-01-01", periods=36, freq="MS")
year = np.sin(2 * np.pi * months.month.to_numpy() / 12)
tables = []
for part in range(1000):
    level, swing, trend = rng.lognormal(3, 1), rng.uniform(0, 0.6), rng.normal(0, 0.01)
    rate = level * (1 + swing * year) * np.exp(trend * np.arange(36))
    if part % 5 == 0:
        rate = rate * 0.02  # mostly nothing
    sold = rng.poisson(rate).astype(float)
    begin = int(rng.integers(0, 24)) if part % 10 == 1 else 0  # some are new
    tables.append(pd.DataFrame({"unique_id": part, "ds": months, "y": sold}).iloc[begin:])
table = pd.concat(tables)
past, came = table[table.ds < months[-3]], table[table.ds >= months[-3]]

# %%
forecaster = PanelForecaster(3, season=12).fit(past)
ahead = forecaster.predict()
ahead.head(3)

# %% [markdown]
# Which methods were used? The weights are means over parts.

# %%
forecaster.weights_.mean().sort_values(ascending=False).head(5).round(3)

# %% [markdown]
# The plain alternatives are the last month, and the same month of last year. The error of each part is
# relative to its mean.

# %%
both = came.merge(ahead, on=["unique_id", "ds"], suffixes=("", "_ours"))
last = past.groupby("unique_id").y.last().rename("y_last")
both = both.merge(last, on="unique_id")
before = past.assign(ds=past.ds + pd.DateOffset(years=1))[["unique_id", "ds", "y"]]
both = both.merge(before, on=["unique_id", "ds"], suffixes=("", "_year"))
size = both.unique_id.map(past.groupby("unique_id").y.mean()).clip(lower=0.1)
errors = {
    name: ((both[f"y_{name}"] - both.y).abs() / size).mean() for name in ("ours", "last", "year")
}
assert errors["ours"] < min(errors["last"], errors["year"])
print(f"{both.unique_id.nunique()} parts: " + ", ".join(f"{n} {e:.3f}" for n, e in errors.items()))

# %% [markdown]
# `ahead` is a table in the format of the input, so you can store it beside the data.
# [Many series in one table](../forecasting.md#many-series-in-one-table) explains inputs and intervals.
