"""Falcon-H1's layer against its two parts, and the words for its errors."""

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.mixers import Attention, FalconH1, Mamba2

D = 8
SCALES = {
    **{"ssm_out": 1.4, "attention_out": 0.6, "score_scale": 2.5},
    **{"z_scale": 0.5, "s_scale": 1.5, "B_scale": 0.8, "C_scale": 1.2, "dt_scale": 0.9},
}
MAMBA = {"d_state": 4, "n_groups": 2, "d_inner": 12, "rmsnorm": True}


def parts(layer):
    """Both alone, with the numbers in their weights."""
    mamba = Mamba2(D, d_head=3, dtype=torch.float64, **MAMBA)
    attention = Attention(D, n_heads=2, n_kv_heads=1, d_rotary=2, dtype=torch.float64)
    mamba.load_state_dict(layer.mamba.state_dict())
    attention.load_state_dict(layer.attention.state_dict())
    rows = [12, 12, 8, 8, 4]  # z, s, B, C and dt
    with torch.no_grad():
        factors = [SCALES[f"{name}_scale"] for name in ("z", "s", "B", "C", "dt")]
        for part, factor in zip(mamba.in_proj.weight.split(rows), factors, strict=True):
            part.mul_(factor)
        mamba.out_proj.weight.mul_(SCALES["ssm_out"])
        attention.k_proj.weight.mul_(SCALES["score_scale"])
        attention.o_proj.weight.mul_(SCALES["attention_out"])
    return mamba, attention


def test_is_the_sum_of_its_parts():
    sizes = {"n_heads": 2, "n_kv_heads": 1, "d_rotary": 2, "mamba_head": 3}
    layer = FalconH1(D, dtype=torch.float64, **sizes, **MAMBA, **SCALES)
    x = torch.randn(2, 13, D, dtype=torch.float64)
    mamba, attention = parts(layer)
    torch.testing.assert_close(layer(x)[0], mamba(x)[0] + attention(x)[0])
    plain = FalconH1(D, dtype=torch.float64, **sizes, **MAMBA)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(plain(x)[0], plain.mamba(x)[0] + plain.attention(x)[0])


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="FalconH1: score_scale must be"):
        FalconH1(D, score_scale=0.0)
    with pytest.raises(ArgumentError, match="Mamba2: s_scale must be"):
        FalconH1(D, s_scale=-1.0)
