# %% [markdown]
# # Classes of series, without training
#
# After this page you can classify whole time series with a scikit-learn estimator that fits in seconds. A bank
# of frozen recurrences reads each series once. A ridge regression on features of its modes is the
# classifier. No gradient descent is needed.

# %%
import numpy as np

import linrnn

random = np.random.default_rng(0)
steps, fast = np.arange(120), np.arange(80) % 2 == 1
period = np.where(fast, 9.0, 12.0)[:, None]
phase = random.uniform(0, 6.28, (80, 1))
X = np.sin(2 * np.pi * steps / period + phase) + 1.5 * random.normal(size=(80, 120))
y = np.where(fast, "fast", "slow")

model = linrnn.RecurrentClassifier(n_modes=500, random_state=0).fit(X[:40], y[:40])
model.score(X[40:], y[40:])

# %% [markdown]
# Two of the series, with their predicted probabilities:

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 1, sharex=True)
for axis, row in zip(axes, (40, 41), strict=True):
    share = model.predict_proba(X[row : row + 1])[0]
    axis.plot(steps, X[row])
    axis.set_title(f"{y[row]}: P({model.classes_[0]}) = {share[0]:.2f}")
axes[-1].set_xlabel("step")
plt.show()

# %% [markdown]
# Series may have different lengths and missing values:

# %%
shorter = [row[: random.integers(70, 120)].copy() for row in X]
for row in shorter:
    row[random.uniform(size=len(row)) < 0.1] = np.nan

model.fit(shorter[:40], y[:40]).score(shorter[40:], y[40:])
# %% [markdown]
# The plain alternative is the nearest labelled series, in the Euclidean distance. It fails here because
# each series has another phase:

# %%
from sklearn.neighbors import KNeighborsClassifier

nearest = KNeighborsClassifier(1).fit(X[:40], y[:40]).score(X[40:], y[40:])
ours = model.fit(X[:40], y[:40]).score(X[40:], y[40:])
print(f"ours {ours:.0%}, nearest series {nearest:.0%}")
assert ours > nearest
