"""Mixers side by side: same backbone, same optimiser, same data, several seeds.

`compare` trains every mixer with every seed, each in a process and a run folder of its own, and
writes a table, a CSV file and plots. It can be stopped and started again at any time: what is
finished is kept, what was interrupted goes on.
"""

from linrnn.compare._compare import Entry as Entry
from linrnn.compare._compare import Row as Row
from linrnn.compare._compare import compare as compare
from linrnn.compare._match import match_parameters as match_parameters

__all__ = ["Entry", "Row", "compare", "match_parameters"]
