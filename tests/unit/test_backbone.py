"""SequenceModel: streaming equals reading, pooling, a plain PyTorch loop, error messages."""

from typing import get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F

from linrnn import SequenceModel, mixers
from linrnn.block import BLOCKS, FEED_FORWARD, Block
from linrnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from linrnn.state import leaves

POOLS = ("mean", "last", "none")


def model(**options):
    torch.manual_seed(0)
    defaults = {"d_model": 8, "n_layers": 2, "dtype": torch.float64}
    return SequenceModel(3, 4, **{**defaults, **options}).eval()


def awake(net):
    """No parameter is zero, as some start in order to make a block the identity."""
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return net


STACKS = [
    *({"mixer": mixer} for mixer in mixers.names()),
    *({"pool": pool, "prenorm": before} for pool in POOLS for before in (True, False)),
    *({"block": kind, "pool": "none", "conv_width": 4} for kind in BLOCKS),
    *({"block": kind, "pool": "last", "prenorm": False, "norm": "rms"} for kind in BLOCKS),
    {"block": "bare", "pool": "none", "norm": "none", "skip": False, "mixer": "unicornn"},
    {"block": "bare", "pool": "none", "norm": "rms", "skip": False, "mixer": "rwkv4"},
    {"block": "channel_mix", "mixer": "rwkv4", "norm": "layer"},
    {
        "encoder_scale": 3.0,
        "logit_soft_cap": 0.5,
        "pool": "none",
        "mixer": "rwkv4",
        "block": "bare",
    },
]


@pytest.mark.parametrize("options", STACKS, ids=str)
def test_steps_and_pieces_equal_one_pass(options):
    net, pool = awake(model(**options)), options.get("pool", "mean")
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    y, state = net(x)
    assert y.shape == ((2, 11, 4) if pool == "none" else (2, 4))
    first, carried = net(x[:, :6])
    second, carried = net(x[:, 6:], carried)
    pieces = torch.cat([first, second], 1) if pool == "none" else second
    torch.testing.assert_close(pieces, y)
    streamed = net.init_state(2)
    outputs = []
    for t in range(11):
        y_t, streamed = net.step(x[:, t], streamed)
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1) if pool == "none" else outputs[-1], y)
    for other in (carried, streamed):
        for got, expected in zip(leaves(other), leaves(state), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("pool", ["mean", "last"])
def test_padding_is_ignored(pool, bidirectional):
    net = model(pool=pool, bidirectional=bidirectional, mixer_options={"d_state": 5})
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    x[1, 4:] = float("nan")
    y, _ = net(x, lengths=torch.tensor([9, 4]))
    torch.testing.assert_close(y[0], net(x[:1])[0][0])
    torch.testing.assert_close(y[1], net(x[1:, :4])[0][0])


RESETS = [
    *({"block": kind, "conv_width": width} for kind in BLOCKS for width in (0, 4)),
    {"pool": "last"},
    {"bidirectional": True},
    {"bidirectional": True, "block": "mlp", "conv_width": 4},
]


@pytest.mark.parametrize("options", RESETS, ids=str)
def test_reset_starts_a_new_sequence_in_every_layer_and_the_pooling(options):
    net = awake(model(**options))
    x = torch.randn(1, 9, 3, dtype=torch.float64)
    x[:, 2] = float("nan")
    reset = torch.zeros(1, 9, dtype=torch.bool)
    reset[:, [2, 5]] = True
    y, state = net(x, reset=reset)
    expected, alone = net(x[:, 5:])
    torch.testing.assert_close(y, expected)
    for got, want in zip(leaves(state), leaves(alone), strict=True):
        torch.testing.assert_close(got, want)


def test_tokens_are_embedded():
    net = SequenceModel(11, 5, encoder="tokens", pool="none", d_model=8, n_layers=1).eval()
    tokens = torch.randint(11, (2, 7))
    y, _ = net(tokens)
    assert y.shape == (2, 7, 5)
    y_0, _ = net.step(tokens[:, 0], net.init_state(2))
    torch.testing.assert_close(y_0, y[:, 0])


def test_block_is_the_papers_figure():
    """Pre-norm: x + GLU(GELU(mixer(norm(x)))), written out."""
    torch.manual_seed(0)
    block = Block(mixers.build("lru", 6), norm="layer").eval()
    x = torch.randn(2, 5, 6)
    z = torch.nn.functional.gelu(block.mixer(torch.nn.functional.layer_norm(x, (6,)))[0])
    value, gate = (z @ block.glu.linear.weight.mT + block.glu.linear.bias).chunk(2, -1)
    torch.testing.assert_close(block(x)[0], x + value * torch.sigmoid(gate))


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("prenorm", [True, False])
def test_chain_of_parts_is_what_the_docstring_says(prenorm, skip):
    torch.manual_seed(0)
    how = {"prenorm": prenorm, "skip": skip}
    options = {"kind": "mlp", "conv_width": 3, "norm": "layer", **how}
    block = Block(mixers.build("lru", 6), **options)
    x = z = torch.randn(2, 5, 6)

    def add(z, part, norm):
        if prenorm:
            return skip * z + part(norm(z))
        return norm(skip * z + part(z))

    z = add(z, lambda u: block.conv(u, torch.zeros(2, 2, 6))[0], block.conv_norm)
    z = add(z, lambda u: block.mixer(u)[0], block.norm)
    z = add(z, lambda u: block.mlp.down(F.gelu(block.mlp.up(u))), block.mlp_norm)
    y, state = block(x)
    torch.testing.assert_close(y, z)
    assert set(state) == {"conv", "mixer"}
    bare = Block(mixers.build("lru", 6), kind="bare", norm="none", **how)
    y, state = bare(x)
    torch.testing.assert_close(y, skip * x + bare.mixer(x)[0])
    assert isinstance(state, torch.Tensor)


def test_norms_stand_behind_the_parts_of_the_blocks_that_are_named():
    torch.manual_seed(0)
    net = SequenceModel(
        *(3, 2),
        **{"mixer": "lru,mingru", "n_layers": 4, "d_model": 6, "norm": "layer"},
        **{"block": "mlp", "out_norm": ("mingru",), "skip_scale": 0.5, "pool": "none"},
    )
    x = torch.randn(2, 5, 3)
    z = net.encoder(x)
    for i, block in enumerate(net.blocks):
        for part, norm in ((block.mixer, block.norm), (block.mlp, block.mlp_norm)):
            u = part(norm(z) if i % 2 == 0 else z)
            u = u[0] if isinstance(u, tuple) else u
            z = 0.5 * z + (u if i % 2 == 0 else norm(u))
    torch.testing.assert_close(net(x)[0], net.head(z))


@pytest.mark.unchecked
def test_places_of_norms_that_do_not_suit_are_refused():
    with pytest.raises(ArgumentError, match="Block: prenorm must be True with out_norm"):
        model(prenorm=False, out_norm=("lru",))
    with pytest.raises(ArgumentError, match="Block: skip_scale must be positive and finite, got 0"):
        model(skip_scale=0.0)
    with pytest.raises(ArgumentError, match=r"Block: skip_scale must be 1 where nothing .* got 2"):
        model(skip_scale=2.0, skip=False)
    with pytest.raises(UnknownNameError, match="no SequenceModel out_norm named 'gru'"):
        model(out_norm=("gru",))


@pytest.mark.unchecked
def test_a_row_of_the_table_is_a_block(monkeypatch):
    row = (("channel_mix", "gelu"), ("mixer", "drop", "glu"), ("mlp",))
    monkeypatch.setitem(BLOCKS, "mine", row)
    net = awake(model(block="mine", pool="none", norm="layer", conv_width=3))
    block, x = net.blocks[0], torch.randn(2, 5, 8, dtype=torch.float64)
    z = x
    z = z + block.conv(block.conv_norm(z), torch.zeros(2, 2, 8, dtype=x.dtype))[0]
    past = block.channel_mix.init_state(2)
    z = z + F.gelu(block.channel_mix(block.channel_mix_norm(z), past)[0])
    z = z + block.glu(block.mixer(block.norm(z))[0])
    z = z + block.mlp(block.mlp_norm(z))
    torch.testing.assert_close(block(x)[0], z)
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    y, last = net(x)
    state = net.init_state(2)
    for t in range(6):
        y_t, state = net.step(x[:, t], state)
    torch.testing.assert_close(y_t, y[:, -1])
    for got, expected in zip(leaves(state), leaves(last), strict=True):
        torch.testing.assert_close(got, expected)


def test_every_row_of_the_table_is_a_choice():
    for constructor, name in ((SequenceModel, "block"), (Block, "kind")):
        choices = get_args(get_type_hints(constructor.__init__)[name])
        assert choices == tuple(BLOCKS)


def test_a_step_of_float32_has_the_gelu_of_a_sequence():
    net = model(dtype=torch.float32, pool="none", norm="none", n_layers=1)
    x = 20 * torch.randn(64, 1, 3)
    y_t, _ = net.step(x[:, 0], net.init_state(64))
    torch.testing.assert_close(y_t, net(x)[0][:, 0])


def test_what_is_scaled_and_what_is_bounded():
    plain, other = (
        model(pool="none", **o) for o in ({}, {"encoder_scale": 3, "logit_soft_cap": 0.5})
    )
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    with torch.no_grad():
        plain.encoder.weight.mul_(3)
        plain.encoder.bias.mul_(3)
    expected = plain(x)[0]
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(other(x)[0], 0.5 * torch.tanh(expected / 0.5))
    assert other.head.bias is not None


def test_the_default_block_keeps_its_names():
    names = {n for n, _ in model(n_layers=1).blocks[0].named_parameters()}
    lru = {f"mixer.{n}" for n, _ in mixers.build("lru", 4).named_parameters()}
    assert names == lru | {"norm.weight", "norm.bias", "glu.linear.weight", "glu.linear.bias"}


def test_parts_that_depend_on_their_place_are_told_it():
    net = model(mixer="rwkv4", block="channel_mix", n_layers=3)
    assert [m.layer for m in net.mixers] == [b.channel_mix.layer for b in net.blocks] == [0, 1, 2]
    assert {m.n_layers for m in net.mixers} == {3}


WITH_WIDTH = {
    chain[0]: kind for kind, row in BLOCKS.items() for chain in row if chain[0] in FEED_FORWARD
}


@pytest.mark.parametrize(("part", "kind"), WITH_WIDTH.items())
def test_the_width_between_is_an_option(part, kind):
    wide, usual = (model(block=kind, d_ffn=width).blocks[1] for width in (5, None))
    changed = {
        name: tuple(p.shape)
        for (name, p), q in zip(wide.named_parameters(), usual.parameters(), strict=True)
        if p.shape != q.shape
    }
    assert changed
    # a gate may lie before what it is the gate of
    assert all(
        {5, 10} & {*shape} and name.startswith(f"{part}.") for name, shape in changed.items()
    )


@pytest.mark.unchecked
def test_a_width_for_nothing_is_refused():
    able = r"d_ffn must be None where block is 'glu'.*mlp, channel_mix, relu_mix, geglu, "
    with pytest.raises(ArgumentError, match=able):
        model(d_ffn=5)
    for kind in WITH_WIDTH.values():
        with pytest.raises(ArgumentError, match="d_ffn must be an integer of at least 1, got 0"):
            model(block=kind, d_ffn=0)


def test_kinds_of_blocks_alternate():
    how = {"mixer_options": {}, "n_layers": 3, "pool": "none", "norm": "layer"}
    options = {"block_pattern": ("moe", "bare"), "block_options": {"moe": {"n_experts": 3}}}
    net = model(**how, **options, d_ffn=5, residual_scale=0.3, head_scale=0.5)
    assert [block.kind for block in net.blocks] == ["moe", "bare", "moe"]
    assert net.blocks[0].moe.down.shape == (3, 8, 5)
    block, x = net.blocks[2], torch.randn(2, 5, 8, dtype=torch.float64)
    z = x + 0.3 * block.mixer(block.norm(x))[0]
    torch.testing.assert_close(block(x)[0], z + 0.3 * block.moe(block.moe_norm(z)))
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    z, _ = net.features(x)
    torch.testing.assert_close(net(x)[0], net.head(z))
    net.head_scale = 1.0
    torch.testing.assert_close(0.5 * net.features(x)[0], z)


@pytest.mark.unchecked
def test_patterns_of_blocks_and_their_options_are_checked():
    with pytest.raises(UnknownNameError, match="block_pattern named 'mpl'"):
        model(block_pattern=("mpl",))
    with pytest.raises(
        ArgumentError, match="block_pattern must have at most n_layers=1 kinds, got"
    ):
        model(block_pattern=("mlp", "bare"), n_layers=1)
    with pytest.raises(UnknownNameError, match="block_options named 'mlp'"):
        model(block_options={"mlp": {}})
    with pytest.raises(UnknownNameError, match="no option of block part 'moe' named 'experts'"):
        model(block="moe", block_options={"moe": {"experts": 3}})
    with pytest.raises(ArgumentError, match="residual_scale must be"):
        model(residual_scale=0.0)


def test_dropout_is_on_every_part():
    for kind in BLOCKS:
        net = model(block=kind, conv_width=2, dropout=0.999, pool="none")
        x = torch.randn(1, 6, 3, dtype=torch.float64)
        torch.testing.assert_close(net.eval()(x)[0], net(x)[0])
        kept = net.train().blocks[0].norm  # statistics apart, nearly all that is added is dropped
        kept.eval()
        z = torch.randn(1, 6, 8, dtype=torch.float64)
        torch.manual_seed(0)
        unchanged = (net.blocks[0](z)[0] == z).double().mean()
        assert unchanged > 0.9, kind


def test_a_model_in_both_directions():
    net = model(bidirectional=True, pool="none")
    assert all(isinstance(m, mixers.Bidirectional) for m in net.mixers)
    x = torch.randn(1, 6, 3, dtype=torch.float64)
    changed = x.clone()
    changed[:, -1] += 1
    assert (net(x)[0][:, 0] != net(changed)[0][:, 0]).any()
    with pytest.raises(ArgumentError, match="the input must be a whole sequence, got one step"):
        net.step(x[:, 0], net.init_state(1))


@pytest.mark.unchecked
def test_it_compiles():
    net = model(block="mlp", conv_width=4, dtype=torch.float32)
    x = torch.randn(2, 7, 3)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], net(x)[0])


def test_batch_norm_takes_statistics_over_batch_and_time():
    net = model(norm="batch").train()
    net(torch.randn(4, 50, 3, dtype=torch.float64))
    seen = net.encoder(torch.zeros(1, 3, dtype=torch.float64))
    norm = net.blocks[0].norm
    assert norm.num_batches_tracked == 1
    assert norm.running_mean.shape == seen.shape[1:]


def test_a_plain_pytorch_loop_learns():
    """Which of two frequencies: no Lightning, no configuration."""
    torch.manual_seed(0)
    net = SequenceModel(1, 2, d_model=16, n_layers=1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    label = torch.randint(2, (64,))
    t = torch.arange(40.0)
    x = torch.sin(t * (0.2 + 0.3 * label[:, None]) + torch.rand(64, 1) * 6)[..., None]
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(net(x)[0], label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


ERRORS = [
    ({"mixer": "lur"}, UnknownNameError, "no mixer named 'lur'. Did you mean 'lru'?"),
    ({"mixer_options": {"d_stat": 3}}, UnknownNameError, "option of mixer 'lru' named 'd_stat'"),
    ({"norm": "btach"}, UnknownNameError, "Did you mean 'batch'?"),
    ({"pool": "max"}, UnknownNameError, "no pool kind named 'max'"),
    ({"encoder": "conv"}, UnknownNameError, "encoder named 'conv'"),
    ({"block": "mpl"}, UnknownNameError, "no block kind named 'mpl'. Did you mean 'mlp'?"),
    ({"conv_width": -1}, ArgumentError, "conv_width must be an integer of at least 0, got -1"),
    ({"n_layers": 0}, ArgumentError, "n_layers must be an integer of at least 1, got 0"),
    ({"dropout": 1.0}, ArgumentError, r"dropout must be in \[0, 1\), got 1.0"),
    ({"dropout": "0.1"}, ArgumentError, r"dropout must be in \[0, 1\), got '0.1'"),
    ({"dropout": True}, ArgumentError, r"dropout must be in \[0, 1\), got True"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), ERRORS)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        model(**options)


@pytest.mark.unchecked
def test_inputs_and_states_are_checked():
    net = model()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    with pytest.raises(
        ShapeError, match=r"x must have shape \(batch, time, d_input=3\), got \(2, 3\)"
    ):
        net(x[:, 0])
    with pytest.raises(ShapeError, match=r"x_t must have shape \(batch, d_input=3\)"):
        net.step(x, net.init_state(2))
    with pytest.raises(DTypeError, match="state must be what this model returned"):
        net(x, torch.zeros(2))
    with pytest.raises(ArgumentError, match="state must hold 2 layers like the model, got 3"):
        net(x, model(n_layers=3).init_state(2))
    with pytest.raises(
        ShapeError, match=r"state must have shape \(batch=2, d_state=8\), got \(1, 8\)"
    ):
        net(x, net.init_state(1))
    with pytest.raises(DTypeError, match="x must be integer token ids"):
        SequenceModel(5, 5, encoder="tokens")(torch.zeros(1, 3))
    for wrong in (-1, 6):
        with pytest.raises(ArgumentError, match=rf"lengths must be in 0..5, .* got {wrong}"):
            net(x, lengths=torch.tensor([3, wrong]))


@pytest.mark.unchecked
def test_states_of_parts_are_checked():
    net = model(block="mlp", conv_width=4)
    x, state = torch.randn(2, 5, 3, dtype=torch.float64), model().init_state(2)
    with pytest.raises(DTypeError, match=r"a dict with \['conv', 'mixer'\], got Tensor"):
        net(x, state)
    right = net.init_state(2)
    right["layers"][1] = {"conv": right["layers"][1]["conv"][:1], "mixer": state["layers"][1]}
    with pytest.raises(
        ShapeError, match=r"state\['conv'\] must have shape \(batch=2, past=3, channels=8\)"
    ):
        net(x, right)
    right["layers"][1] = {"mixer": state["layers"][1]}
    with pytest.raises(DTypeError, match=r"got a dict with \['mixer'\]"):
        net.step(x[:, 0], right)


def language_model(**options):
    return SequenceModel(11, 11, d_model=8, n_layers=1, norm="rms", pool="none",
                         encoder="tokens", **options)  # fmt: skip


def test_tied_embeddings_are_one_parameter():
    model = language_model(tie_embeddings=True)
    assert model.head.weight is model.encoder.weight
    plain = language_model()
    fewer = sum(p.numel() for p in plain.parameters()) - sum(p.numel() for p in model.parameters())
    assert fewer == 11 * 8
    model(torch.arange(6).reshape(2, 3))[0].square().sum().backward()
    assert model.head.weight.grad is model.encoder.weight.grad
    other = language_model(tie_embeddings=True)
    other.load_state_dict({name: x.clone() for name, x in model.state_dict().items()})
    assert other.head.weight is other.encoder.weight
    assert torch.equal(other.head.weight, model.head.weight)


def test_the_final_norm_is_before_the_head_and_in_every_step():
    model = language_model(final_norm=True)
    torch.nn.init.normal_(model.final_norm.weight)
    seen = []
    model.head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = torch.arange(6).reshape(2, 3)
    y, _ = model(x)
    normed = seen[0] / model.final_norm.weight
    assert torch.allclose(normed.square().mean(-1), torch.ones(2, 3), atol=1e-4)
    state = model.init_state(2)
    for t in range(3):
        y_t, state = model.step(x[:, t], state)
        assert torch.allclose(y_t, y[:, t], atol=1e-5)


@pytest.mark.unchecked
def test_embeddings_are_tied_where_they_fit_only():
    for wrong in ({"d_output": 5, "encoder": "tokens"}, {"d_output": 11}):
        with pytest.raises(ArgumentError, match="tie_embeddings must be False unless tokens go in"):
            SequenceModel(11, **wrong, tie_embeddings=True)


@pytest.mark.parametrize("ends", ["in", "both"])
def test_ends_that_hand_on_leave_a_layer_alone(ends):
    """A sequence and a step are the layer's; nothing learns but the layer, and the head."""
    options = {"d_model": 3, "n_layers": 1, "norm": "none", "block": "bare", "skip": False}
    net = SequenceModel(3, 3, pool="none", identity_ends=ends, dtype=torch.float64, **options)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    alone = net.mixers[0](x)[0]
    expected = alone if ends == "both" else net.head(alone)
    torch.testing.assert_close(net(x)[0], expected)
    y, _ = net.step(x[:, 0], net.init_state(2))
    torch.testing.assert_close(y, expected[:, 0])
    learned = {name for name, p in net.named_parameters() if p.requires_grad}
    layer = {n for n, _ in net.named_parameters() if n.startswith("blocks.")}
    assert learned == layer | ({"head.weight", "head.bias"} if ends == "in" else set())


@pytest.mark.parametrize(
    "sizes", [(2, 3, {}), (3, 4, {"identity_ends": "both"}), (3, 3, {"encoder": "tokens"})]
)
def test_ends_of_other_sizes_cannot_hand_on(sizes):
    d_input, d_output, options = sizes
    with pytest.raises(ArgumentError, match="identity_ends must be 'none' unless that end"):
        SequenceModel(d_input, d_output, d_model=3, **{"identity_ends": "in", **options})


@pytest.mark.parametrize(("vocabulary", "gain"), [(300, 0.5 * (300 / 64) ** 0.5), (40, 0.5)])
def test_ends_start_as_in_the_training_program_of_rwkv(vocabulary, gain):
    torch.manual_seed(0)
    options = {"encoder": "tokens", "pool": "none", "norm": "layer", "block": "relu_mix"}
    options |= {"encoder_norm": True, "final_norm": True, "head_bias": False, "n_layers": 2}
    options |= {"mixer": "rwkv7", "mixer_options": {"init": "trainer"}, "ends_init": "rwkv"}
    model = SequenceModel(vocabulary, vocabulary, **options)
    embedding, head = model.encoder.weight.detach(), model.head.weight.detach().double()
    assert embedding.abs().max() <= 1e-4
    assert abs(float(embedding.std()) * 3**0.5 / 1e-4 - 1) < 0.03
    small = head.mT @ head if vocabulary > 64 else head @ head.mT
    torch.testing.assert_close(small, gain**2 * torch.eye(len(small)).double(), rtol=0, atol=1e-5)
    for block in model.blocks:  # and so do the layers between
        key = block.relu_mix.key.weight.detach()
        torch.testing.assert_close(key.mT @ key, torch.eye(64), rtol=0, atol=1e-5)
        assert block.relu_mix.value.weight.eq(0).all()
        assert block.mixer.output.weight.eq(0).all()
    half = SequenceModel(vocabulary, vocabulary, **options, dtype=torch.bfloat16)
    assert half.head.weight.dtype == torch.bfloat16


@pytest.mark.unchecked
@pytest.mark.parametrize("beside", [{"tie_embeddings": True}, {"identity_ends": "both"}])
def test_ends_that_start_in_two_ways_are_refused(beside):
    options = {"encoder": "tokens"} if "tie_embeddings" in beside else {}
    with pytest.raises(ArgumentError, match="ends_init must be 'default' with "):
        SequenceModel(4, 4, d_model=4, ends_init="rwkv", **options, **beside)
