"""Parts with parameters and no recurrence."""

from linrnn.nn.glu import GLU as GLU
from linrnn.nn.norm import make_norm as make_norm
from linrnn.nn.pool import Pool as Pool

__all__ = ["GLU", "Pool", "make_norm"]
