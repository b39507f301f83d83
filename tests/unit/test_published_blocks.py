"""Stacks of published blocks: xLSTM[a:b] against its equation and the public code."""

import pytest
import torch
import torch.nn.functional as F

from linrnn import SequenceModel
from linrnn.mixers import MLSTM, SLSTM

XLSTM = {"block": "xlstm", "norm": "layer", "final_norm": True, "pool": "none"}


def xlstm(mixer="mlstm,slstm", d_model=16, n_layers=2, **options):
    torch.manual_seed(0)
    stack = {"mixer": mixer, "d_model": d_model, "n_layers": n_layers, **XLSTM}
    net = SequenceModel(7, 7, encoder="tokens", head_bias=False, **stack, **options)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def test_xlstm_7_1_is_a_pattern():
    net = xlstm("7*mlstm,slstm", n_layers=16)
    assert [type(m) for m in net.mixers] == ([MLSTM] * 7 + [SLSTM]) * 2
    for layer, block in enumerate(net.blocks):
        behind = {n.partition(".")[0] for n, _ in block.named_parameters()} - {"mixer", "norm"}
        assert behind == ({"ffn", "ffn_norm"} if layer % 8 == 7 else set())
    assert [m.layer for m in net.mixers if isinstance(m, SLSTM)] == [7, 15]


def test_feed_forward_stands_behind_what_does_not_widen_itself():
    net = xlstm(dtype=torch.float64)
    ids = torch.randint(7, (2, 9))
    first, second = net.blocks
    z = net.encoder(ids)
    z = z + first.mixer(first.norm(z))[0]
    z = z + second.mixer(second.norm(z))[0]
    gate, up, down = (getattr(second.ffn, name) for name in ("gate", "up", "down"))
    assert gate.weight.shape == (64, 16)
    u = second.ffn_norm(z)
    z = z + F.linear(F.gelu(u @ gate.weight.T) * (u @ up.weight.T), down.weight)
    torch.testing.assert_close(net(ids)[0], net.head(net.final_norm(z)))


def test_equals_the_public_code():
    stack = pytest.importorskip("xlstm.xlstm_block_stack")
    mlstm = pytest.importorskip("xlstm.blocks.mlstm.block")
    slstm = pytest.importorskip("xlstm.blocks.slstm.block")
    ours = xlstm(d_model=64)
    theirs = stack.xLSTMBlockStack(
        stack.xLSTMBlockStackConfig(
            mlstm_block=mlstm.mLSTMBlockConfig(mlstm=mlstm.mLSTMLayerConfig(num_heads=4)),
            slstm_block=slstm.sLSTMBlockConfig(
                slstm=slstm.sLSTMLayerConfig(num_heads=4, backend="vanilla")
            ),
            **{"context_length": 30, "num_blocks": 2, "embedding_dim": 64, "slstm_at": [1]},
        )
    )
    with torch.no_grad():
        for norm in [n for n in ours.modules() if isinstance(n, torch.nn.LayerNorm)]:
            norm.bias.zero_()  # theirs have none
    copy_mlstm(ours.blocks[0], theirs.blocks[0])
    copy_slstm(ours.blocks[1], theirs.blocks[1])
    theirs.post_blocks_norm.weight.data = ours.final_norm.weight.data - 1
    ids = torch.randint(7, (2, 30))
    expected = ours.head(theirs(ours.encoder(ids)))
    torch.testing.assert_close(ours(ids)[0], expected, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def copy_mlstm(ours, theirs):
    layer, mixer = theirs.xlstm, ours.mixer
    theirs.xlstm_norm.weight.copy_(ours.norm.weight - 1)
    for name in ("proj_up", "proj_down"):
        getattr(layer, name).weight.copy_(getattr(mixer, name).weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer, name).weight.copy_(getattr(mixer, name).weight.mT)
    layer.conv1d.conv.weight.copy_(mixer.conv1d.weight[:, None])
    layer.conv1d.conv.bias.copy_(mixer.conv1d.bias)
    layer.learnable_skip.copy_(mixer.learnable_skip)
    layer.mlstm_cell.outnorm.weight.copy_(mixer.outnorm.weight - 1)
    for name in ("igate", "fgate"):
        getattr(layer.mlstm_cell, name).weight.copy_(getattr(mixer, name).weight)
        getattr(layer.mlstm_cell, name).bias.copy_(getattr(mixer, name).bias)


@torch.no_grad()
def copy_slstm(ours, theirs):
    layer, mixer, cell = theirs.xlstm, ours.mixer, theirs.xlstm.slstm_cell
    theirs.xlstm_norm.weight.copy_(ours.norm.weight - 1)
    # their layer calls the gates of i and f by each other's name
    names = {"fgate": "i_gate", "igate": "f_gate", "zgate": "z_gate", "ogate": "o_gate"}
    for name, own in names.items():
        getattr(layer, name).weight.copy_(getattr(mixer, own).weight.mT)
    layer.conv1d.conv.weight.copy_(mixer.conv1d.weight[:, None])
    layer.conv1d.conv.bias.copy_(mixer.conv1d.bias)
    cell._recurrent_kernel_.copy_(cell._recurrent_kernel_ext2int(mixer.R.permute(1, 3, 0, 2)))
    biases = [torch.zeros(4, 16), *(g.bias for g in (mixer.f_gate, mixer.z_gate, mixer.o_gate))]
    cell._bias_.copy_(cell._bias_ext2int(torch.stack(biases, 1)))
    layer.group_norm.weight.copy_(mixer.outnorm.weight - 1)
    theirs.ffn_norm.weight.copy_(ours.ffn_norm.weight - 1)
    theirs.ffn.proj_up.weight.copy_(torch.cat([ours.ffn.gate.weight, ours.ffn.up.weight]))
    theirs.ffn.proj_down.weight.copy_(ours.ffn.down.weight)
