"""Mixers side by side: same backbone, same optimiser, same data, several seeds.

`compare` trains every mixer with every seed, each in a separate process and run folder, and
writes a table, a CSV file and plots. It can be stopped and started again at any time: what is
finished is kept, what was interrupted goes on. `sweep` does the same over values of any options.
"""

from linrnn.compare._compare import compare as compare
from linrnn.compare._range import Range as Range
from linrnn.compare._runs import Entry as Entry
from linrnn.compare._runs import Row as Row
from linrnn.compare._setting import Setting as Setting
from linrnn.compare.match import match_parameters as match_parameters
from linrnn.compare.sweeps import sweep as sweep
from linrnn.compare.tune import FACTORS as FACTORS

__all__ = ["FACTORS", "Entry", "Range", "Row", "Setting", "compare", "match_parameters", "sweep"]


def __dir__() -> list[str]:
    return sorted(__all__)
