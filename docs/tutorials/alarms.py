# %% [markdown]
# # A log stream with alarms
#
# After this page you can raise alarms on a stream of counts: one alarm per fault, and few false ones. The
# example is a service that logs each request. You count its log lines in intervals of five minutes.

# %%
import numpy as np

from linrnn import RecurrentDetector

rng = np.random.default_rng(0)
day = 288  # steps of five minutes
steps = np.arange(day * 21)
wave = np.sin(2 * np.pi * steps / day)
load = np.exp(5 + 0.8 * wave + 0.3 * np.sin(4 * np.pi * steps / day + 1))  # lines expected
counts = rng.poisson(load).astype(float)

faults = {  # first step, and the one after the last
    "burst": (4900, 4901),
    "outage": (5100, 5118),
    "slow leak": (5350, 5400),
    "burst again": (5700, 5701),
}
counts[4900] += 400
counts[5100:5118] = 0
counts[5350:5400] = np.round(counts[5350:5400] * np.linspace(1.2, 2.2, 50))
counts[5700] += 300

# %% [markdown]
# The square root gives counts of any size about the same variance. The detector is fitted to two weeks
# of data. From then on it reads one count at a time. `false_alarms` is the accepted rate of alarms at
# normal steps.

# %%
stream = np.sqrt(counts)
weeks = day * 14
detector = RecurrentDetector(false_alarms=0.0003).fit(stream[:weeks, None])
scores = np.array([detector.update(value) for value in stream[weeks:]])


# %% [markdown]
# You want one alarm per fault. So alarms less than an hour apart count as one.


# %%
def alarms(unusual):
    """The first step of each group of unusual steps."""
    at = weeks + np.flatnonzero(unusual)
    return at[np.diff(at, prepend=-day) > 12]


def outcome(at):
    """Minutes until each fault is noticed, and how many alarms were false."""
    near = {name: [a for a in at if begin <= a < end + 12] for name, (begin, end) in faults.items()}
    delays = {name: 5 * int(a[0] - faults[name][0]) for name, a in near.items() if a}
    return delays, len(at) - sum(map(len, near.values()))


delays, false = outcome(alarms(scores < detector.offset_))
for name, minutes in delays.items():
    print(f"{name}: noticed after {minutes} minutes")
print(f"false alarms in a week: {false}")

# %%
import matplotlib.pyplot as plt

fig, (above, below) = plt.subplots(2, sharex=True, figsize=(8, 4))
shown = slice(weeks + day * 2, None)
above.plot(steps[shown] / day, counts[shown], linewidth=0.8)
above.set_ylabel("lines")
below.plot(steps[shown] / day, scores[shown.start - weeks :], linewidth=0.8)
below.axhline(detector.offset_, linestyle=":", label="alarm below")
for begin, end in faults.values():
    above.axvspan(begin / day, end / day, alpha=0.3)
    below.axvspan(begin / day, end / day, alpha=0.3)
below.set(xlabel="day", ylabel="log10 p")
below.legend()
plt.show()

# %% [markdown]
# The detector notices the slow leak only at its end, when the count jumps back. It adapts to changes as
# slow as the leak itself.
#
# The plain alternative is a z-score over the last steps. Here it has an advantage: for each window its
# threshold is chosen with the true faults, as the best one with no more false alarms than ours.

# %%
import pandas as pd

best = []
for window in (50, 200, 1000):
    past = pd.Series(stream).shift().rolling(window)
    z = ((stream - past.mean()) / past.std()).abs().to_numpy()[weeks:]
    for threshold in np.quantile(z, np.linspace(0.9, 1, 200)):
        detected, wrong = outcome(alarms(z > threshold))
        if wrong <= false:
            best.append((len(detected), window, ", ".join(detected)))
count, window, detected = max(best)
print(f"a z-score over {window} steps notices: {detected}")
assert len(delays) == len(faults)
assert len(delays) >= count

# %% [markdown]
# For single spikes in a steady series a z-score is as good, and simpler.
# [Series in scikit-learn](../scikit-learn.md#unusual-steps) compares both on real streams.
