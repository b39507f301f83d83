"""Block-state attention against a loop over blocks; all segments at once against one by one."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import BlockState
from linrnn.nn import rotate
from linrnn.testing import check_property

CONTEXTS = ("single_head", "multi_head", "multi_filter")


def make(**options):
    torch.manual_seed(0)
    sizes = {"n_heads": 2, "d_head": 4, "segment": 4, "n_context": 3, "dtype": torch.float64}
    layer = BlockState(6, **{**sizes, **options})
    for name, parameter in layer.named_parameters():
        if not name.startswith("layer."):
            torch.nn.init.normal_(parameter, std=0.5)
    return layer


def contexts(layer, e, begin):
    """c (B, N, d_model) of a block that begins with a step."""
    if layer.context == "single_head":
        return e[:, begin - layer.n_context : begin]
    last = e[:, begin - 1]
    if layer.context == "multi_head":
        heads = layer.read_out.unflatten(0, (layer.n_context, -1))
        return torch.stack([last @ U.T + i for U, i in zip(heads, layer.id, strict=True)], 1)
    return last.unflatten(-1, (layer.n_context, -1)) + layer.id


def transcription(layer, x):
    copies = layer.n_context if layer.context == "multi_filter" else 1
    e, ys = layer.layer(torch.cat([x] * copies, -1))[0], []
    for begin in range(0, x.shape[1], layer.segment):
        part = x[:, begin : begin + layer.segment]
        q, far, k, v = layer.heads(part)
        place = torch.arange(part.shape[1])[None]
        q, k, far, v = (z.transpose(1, 2) for z in (rotate(q, place), rotate(k, place), far, v))
        own = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        seen = torch.zeros_like(own)
        if begin:
            k, v = (z.transpose(1, 2) for z in layer.context_heads(contexts(layer, e, begin)))
            seen = F.scaled_dot_product_attention(far, k, v)
        ys.append(layer.o_proj(torch.cat([own, seen], 1).transpose(1, 2).flatten(2)))
    return torch.cat(ys, 1)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("time", [3, 8, 14])
def test_equals_a_loop_over_blocks(context, time):
    layer, x = make(context=context), torch.randn(2, time, 6, dtype=torch.float64)
    y, expected = layer(x)[0], transcription(layer, x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    sources = [layer.heads.proj.weight]
    if time > layer.segment:
        sources += [layer.context_heads.proj.weight, *layer.layer.parameters()]
    got, wanted = (
        torch.autograd.grad(z.square().sum(), sources, allow_unused=True) for z in (y, expected)
    )
    torch.testing.assert_close(got, wanted)


@torch.no_grad()
def test_contexts_without_values_leave_attention_in_blocks():
    layer, x = make(), torch.randn(2, 11, 6, dtype=torch.float64)
    layer.context_heads.rows()[1].zero_()
    alone = torch.cat([layer(part)[0] for part in x.split(layer.segment, 1)], 1)
    torch.testing.assert_close(layer(x)[0], alone)


@pytest.mark.parametrize("context", CONTEXTS)
def test_all_blocks_at_once_are_blocks_one_after_another(monkeypatch, context):
    """Rows at different places of their blocks, sequences that begin anew, a number that is NaN."""
    layer = make(context=context)
    read = [layer(torch.randn(1, t, 6, dtype=torch.float64))[1] for t in (3, 5, 0, 8)]
    flat = [torch.utils._pytree.tree_flatten(state) for state in read]
    parts = zip(*(leaves for leaves, _ in flat), strict=True)
    state = torch.utils._pytree.tree_unflatten([torch.cat(z) for z in parts], flat[0][1])
    x, reset = torch.randn(4, 15, 6, dtype=torch.float64), torch.zeros(4, 15, dtype=torch.bool)
    reset[[0, 0, 1, 3, 3], [2, 9, 4, 0, 14]] = True
    x[1, 7] = float("nan")
    y, last = layer(x, state, reset=reset)
    monkeypatch.setattr(BlockState, "independent", False)
    expected, after = layer(x, state, reset=reset)
    assert expected[1, 7:].isnan().all()
    torch.testing.assert_close((y, last), (expected, after), equal_nan=True)


@torch.no_grad()
def test_a_block_sees_nothing_of_its_own_states():
    """A change inside of a block reaches later queries of it by its own attention alone."""
    layer, x = make(), torch.randn(1, 8, 6, dtype=torch.float64)
    layer.heads.rows()[3].zero_()  # no values of tokens
    changed = x.clone()
    changed[:, 5] += 1
    before, after = layer(x)[0], layer(changed)[0]
    assert after[:, 6:].equal(before[:, 6:])
    assert not after[:, 5].equal(before[:, 5])  # by its query


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing"])
@pytest.mark.parametrize("ssm", ["lru", "s5"])
def test_laws_hold_over_other_state_spaces(law, ssm):
    check_property(law, partial(BlockState, ssm=ssm, context="single_head", n_context=2))


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match=r"BlockState: ssm must name a causal.*got 'attention'"):
        BlockState(4, ssm="attention")
    with pytest.raises(LinrnnError, match="no mixer named 's44'"):
        BlockState(4, ssm="s44")
    with pytest.raises(LinrnnError, match="no BlockState context named 'heads'"):
        BlockState(4, context="heads")
