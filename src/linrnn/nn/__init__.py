"""Parts with parameters and no recurrence."""

from linrnn.nn.channel_mix import ChannelMix as ChannelMix
from linrnn.nn.conv import CausalConv as CausalConv
from linrnn.nn.glu import GLU as GLU
from linrnn.nn.mlp import MLP as MLP
from linrnn.nn.norm import make_norm as make_norm
from linrnn.nn.pair import Pair as Pair
from linrnn.nn.pool import Pool as Pool
from linrnn.ops.past import last_inputs as last_inputs
from linrnn.ops.past import recall as recall

__all__ = [
    "GLU",
    "MLP",
    "CausalConv",
    "ChannelMix",
    "Pair",
    "Pool",
    "last_inputs",
    "make_norm",
    "recall",
]
