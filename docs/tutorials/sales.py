# %% [markdown]
# # Sales with holidays
#
# After this page you can forecast many series from one table, with events that are known in advance. The example has
# three shops and one year of daily sales. Saturdays and holidays sell more, and future holidays are
# known. The forecast covers the next two weeks, with intervals.

# %%
import numpy as np
import pandas as pd

from linrnn import PanelForecaster

rng = np.random.default_rng(0)
days = pd.date_range("2023-01-01", periods=365)
holiday = (rng.uniform(size=len(days)) < 0.04).astype(float)
holiday[-9] = 1.0  # one falls into the two weeks that are forecast


def shop(name, level):
    week = 1 + 0.4 * (days.day_of_week == 5)
    sold = level * week * (1 + holiday) * rng.lognormal(0, 0.1, len(days))
    return pd.DataFrame({"shop": name, "day": days, "sold": sold, "holiday": holiday})


table = pd.concat(shop(name, 40.0 * k) for k, name in enumerate(["north", "south", "east"], 1))
past, came = table[table.day < days[-14]], table[table.day >= days[-14]]
table.head(3)

# %% [markdown]
# The forecaster takes the table directly. `known` names the columns that are known in advance, and
# `predict` takes their future values.

# %%
forecaster = PanelForecaster(14, id="shop", time="day", value="sold", known=["holiday"]).fit(past)
ahead = forecaster.predict_interval(X=came[["shop", "day", "holiday"]])
ahead.head(3)

# %%
import matplotlib.pyplot as plt

north, real = ahead[ahead.shop == "north"], came[came.shop == "north"]
plt.plot(real.day, real.sold, marker="o", linestyle="none", label="what came")
plt.plot(north.day, north.sold, label="forecast")
plt.fill_between(north.day, north.sold_lower, north.sold_upper, alpha=0.2, label="80 % band")
plt.ylabel("sold in the north")
plt.xticks(rotation=30)
plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
plt.show()

# %% [markdown]
# The plain alternative is to repeat the last two weeks. It knows Saturdays but not holidays.

# %%
both = came.merge(ahead, on=["shop", "day"], suffixes=("", "_said"))
before = past.assign(day=past.day + pd.Timedelta(days=14))[["shop", "day", "sold"]]
both = both.merge(before, on=["shop", "day"], suffixes=("", "_before"))
off = {name: (both[f"sold_{name}"] / both.sold - 1).abs().mean() for name in ("said", "before")}
assert off["said"] < off["before"]
print(f"off by {off['said']:.0%}; two weeks before is off by {off['before']:.0%}")

# %% [markdown]
# On your own table: `linrnn train forecast --data sales.csv --task.id shop --task.time day
# --task.value sold --task.known holiday`. [Forecasts](../forecasting.md) explains all options.
