"""Parts of layers: projections, norms, gates, positions, initial values; a bank of modes."""

from linrnn.nn.channel_mix import ChannelMix as ChannelMix
from linrnn.nn.conv import CausalConv as CausalConv
from linrnn.nn.conv_heads import ConvHeads as ConvHeads
from linrnn.nn.features import LearnedFeatures as LearnedFeatures
from linrnn.nn.features import dpfp as dpfp
from linrnn.nn.features import second_powers as second_powers
from linrnn.nn.gates import held_gain as held_gain
from linrnn.nn.gates import softplus_steps as softplus_steps
from linrnn.nn.gates import unit_gain as unit_gain
from linrnn.nn.glu import GLU as GLU
from linrnn.nn.head import CappedLinear as CappedLinear
from linrnn.nn.head import make_head as make_head
from linrnn.nn.head_norm import head_norm as head_norm
from linrnn.nn.heads import BlockDiagonal as BlockDiagonal
from linrnn.nn.heads import GatedOut as GatedOut
from linrnn.nn.heads import HeadNorm as HeadNorm
from linrnn.nn.heads import Heads as Heads
from linrnn.nn.heads import LowRank as LowRank
from linrnn.nn.heads import default_heads as default_heads
from linrnn.nn.heads import feature_map as feature_map
from linrnn.nn.heads import l2_normalise as l2_normalise
from linrnn.nn.heads import sum_normalise as sum_normalise
from linrnn.nn.linear import Linear as Linear
from linrnn.nn.mlp import MLP as MLP
from linrnn.nn.mlp import GatedMLP as GatedMLP
from linrnn.nn.mode_bank import ModeBank as ModeBank
from linrnn.nn.moe import MoE as MoE
from linrnn.nn.norm import make_norm as make_norm
from linrnn.nn.pair import Pair as Pair
from linrnn.nn.parameters import bounded_exp as bounded_exp
from linrnn.nn.parameters import empty_parameters as empty_parameters
from linrnn.nn.parameters import has_decay as has_decay
from linrnn.nn.parameters import lecun_normal as lecun_normal
from linrnn.nn.pool import Pool as Pool
from linrnn.nn.relative import RelativePositions as RelativePositions
from linrnn.nn.resample import Beneath as Beneath
from linrnn.nn.resample import Resample as Resample
from linrnn.nn.ring import check_phase as check_phase
from linrnn.nn.ring import check_ring as check_ring
from linrnn.nn.ring import ring as ring
from linrnn.nn.ring import uniform as uniform
from linrnn.nn.rotary import rotate as rotate
from linrnn.nn.rotary_scaling import RotaryScaling as RotaryScaling
from linrnn.ops.conv.past import last_inputs as last_inputs
from linrnn.ops.conv.past import recall as recall

__all__ = [
    "GLU",
    "MLP",
    "Beneath",
    "BlockDiagonal",
    "CappedLinear",
    "CausalConv",
    "ChannelMix",
    "ConvHeads",
    "GatedMLP",
    "GatedOut",
    "HeadNorm",
    "Heads",
    "LearnedFeatures",
    "Linear",
    "LowRank",
    "MoE",
    "ModeBank",
    "Pair",
    "Pool",
    "RelativePositions",
    "Resample",
    "RotaryScaling",
    "bounded_exp",
    "check_phase",
    "check_ring",
    "default_heads",
    "dpfp",
    "empty_parameters",
    "feature_map",
    "has_decay",
    "head_norm",
    "held_gain",
    "l2_normalise",
    "last_inputs",
    "lecun_normal",
    "make_head",
    "make_norm",
    "recall",
    "ring",
    "rotate",
    "second_powers",
    "softplus_steps",
    "sum_normalise",
    "uniform",
    "unit_gain",
]


def __dir__() -> list[str]:
    return sorted(__all__)
