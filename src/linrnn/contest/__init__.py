"""Which model answers for data of your own: a frozen bank, a linear model, or a trained mixer.

All are judged on data that they were not fitted to, beside the plainest methods, and the better
one is put into a run folder. On small data that takes seconds.
"""

from linrnn.contest._panel import contest_of as contest_of
from linrnn.contest._race import Contest as Contest
from linrnn.contest._race import Entry as Entry
from linrnn.contest._run import Only as Only
from linrnn.contest._run import fitted_budget as fitted_budget
from linrnn.contest._run import hold as hold
from linrnn.contest._run import run as run

__all__ = ["Contest", "Entry", "Only", "contest_of", "fitted_budget", "hold", "run"]


def __dir__() -> list[str]:
    return sorted(__all__)
