# %% [markdown]
# # Heartbeats in classes
#
# Strips of an electrocardiogram, drawn by a formula so that the page needs no download. In one class
# the T wave is turned over. Rates, sizes and noise differ from strip to strip. Forty strips are
# labelled.

# %%
import numpy as np

import linrnn

rng = np.random.default_rng(0)
WAVES = {"P": (-0.2, 0.15, 0.025), "Q": (-0.03, -0.12, 0.01), "R": (0.0, 1.0, 0.012),
         "S": (0.03, -0.2, 0.012), "T": (0.28, 0.3, 0.05)}  # fmt: skip


def strip(turned):
    seconds = np.arange(300) / 100
    beats = np.cumsum(rng.uniform(0.75, 0.95, 5)) - rng.uniform(0, 0.7)
    signal = rng.normal(0, 0.08, len(seconds)) + 0.1 * np.sin(seconds + rng.uniform(0, 6))
    for beat in beats:
        for name, (at, size, width) in WAVES.items():
            sign = -1 if turned and name == "T" else 1
            size = sign * size * rng.uniform(0.7, 1.3)
            signal += size * np.exp(-(((seconds - beat - at) / width) ** 2) / 2)
    return signal


turned = np.arange(240) % 2 == 1
X = np.stack([strip(t) for t in turned])  # (strips, time)
y = np.where(turned, "turned", "usual")

model = linrnn.RecurrentClassifier(random_state=0).fit(X[:40], y[:40])
model.score(X[40:], y[40:])

# %% [markdown]
# Which part decided? A window is hidden at a time, and the answer loses as much as that was worth.

# %%
import matplotlib.pyplot as plt

lost = model.saliency(X[41:42], window=20)[0]  # (time,)
seconds = np.arange(300) / 100
figure, (top, bottom) = plt.subplots(2, 1, sharex=True)
top.plot(seconds, X[41])
top.set_ylabel("signal")
bottom.plot(seconds, lost)
bottom.set_ylabel("worth of a step")
bottom.set_xlabel("second")
plt.show()

# %% [markdown]
# The plain alternatives are the nearest labelled strip, and a logistic regression of the samples.

# %%
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

plain = {
    "nearest strip": KNeighborsClassifier(1),
    "logistic regression": LogisticRegression(max_iter=1000),
}
shares = {name: rival.fit(X[:40], y[:40]).score(X[40:], y[40:]) for name, rival in plain.items()}
ours = model.score(X[40:], y[40:])
assert ours > max(shares.values())
print(f"ours {ours:.1%}, " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))

# %% [markdown]
# [Series in scikit-learn](../scikit-learn.md) has probabilities, weights of classes, and answers
# before a strip ends. This is no medical device.
