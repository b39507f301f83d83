"""A mixture of experts against its equation, and against the blocks of transformers."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.nn import MoE

OPTIONS = [
    {},
    {"normalise": False, "scale": 1.7, "top_k": 1},
    {"router": "sigmoid", "eps": 0.3},
    {"router": "sigmoid", "corrected": True, "n_groups": 4, "top_groups": 2, "scale": 2.5},
    {"activation": "relu2", "d_latent": 3, "d_shared": 7},
    {"activation": "gelu", "d_shared": 5, "shared_gate": True, "top_k": 8},
]


def made(**options):
    torch.manual_seed(0)
    moe = MoE(6, n_experts=8, d_inner=5, dtype=torch.float64, **options)
    if moe.correction is not None:
        moe.correction.data.normal_()
    return moe


def by_definition(moe, z):
    """One step after the other, one expert after the other."""
    rows = []
    for x in z.flatten(0, -2):
        logits = moe.router.weight @ x
        p = logits.softmax(0) if moe.router_kind == "softmax" else logits.sigmoid()
        choice = p if moe.correction is None else p + moe.correction
        groups = choice.detach().view(moe.n_groups, -1)
        best = groups.sort(-1, descending=True).values[:, :2].sum(-1).argsort(descending=True)
        allowed = best[: moe.top_groups].tolist()
        size = groups.shape[1]
        order = [e for e in choice.argsort(descending=True).tolist() if e // size in allowed]
        chosen = order[: moe.top_k]
        total = moe.eps + sum(p[e] for e in chosen) if moe.normalise else 1
        u = x if moe.latent_in is None else moe.latent_in.weight @ x
        y = 0
        for e in chosen:
            if moe.is_gated:
                h = moe.gate_up[e] @ u
                act = F.silu if moe.activation == "silu" else F.gelu
                h = act(h[:5]) * h[5:]
            else:
                h = (moe.up[e] @ u).clamp(min=0) ** 2
            y = y + moe.scale * p[e] / total * (moe.down[e] @ h)
        y = y if moe.latent_out is None else moe.latent_out.weight @ y
        if moe.shared is not None:
            gate = 1 if moe.shared_gate is None else (moe.shared_gate.weight @ x).sigmoid()
            y = y + gate * moe.shared(x)
        rows.append(y)
    return torch.stack(rows).view(z.shape)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equation_and_gradients(options):
    moe, z = made(**options), torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)
    weights = [z, *(p for p in moe.parameters() if p.requires_grad)]
    y, expected = moe(z), by_definition(moe, z)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(moe(z[:, 3]), y[:, 3])
    probe = torch.randn_like(y)
    for got, rule in zip(
        *(torch.autograd.grad((out * probe).sum(), weights) for out in (y, expected)), strict=True
    ):
        torch.testing.assert_close(got, rule)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_a_compiler_reads_is_the_same(options):
    moe, z = made(**options), torch.randn(2, 5, 6, dtype=torch.float64)
    mapped = torch.func.vmap(moe)(z)
    torch.testing.assert_close(mapped, moe(z))
    exported = torch.export.export(moe, (z,)).module()
    torch.testing.assert_close(exported(z), moe(z))


def test_no_step_at_all():
    moe = made(d_shared=3)
    for shape in ((0, 4, 6), (2, 0, 6), (0, 6)):
        y = moe(torch.empty(shape, dtype=torch.float64))
        assert y.shape == shape
        y.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in moe.parameters())


def test_half_precision_keeps_the_correction():
    moe = made(router="sigmoid", corrected=True).float()
    value = moe.correction.clone()
    moe.bfloat16()
    assert moe.correction.dtype == torch.float32
    assert torch.equal(moe.correction, value)
    z = torch.randn(4, 6)
    y, exact = moe(z.bfloat16()), moe.float()(z)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)


def copy(moe, **names):
    """Put tensors of another block into ours."""
    with torch.no_grad():
        for name, value in names.items():
            moe.get_parameter(name.replace("__", ".")).copy_(value)
    return moe


def block_of_granite():
    kind = pytest.importorskip("transformers.models.granitemoehybrid.modeling_granitemoehybrid")
    config = kind.GraniteMoeHybridConfig(
        **{"hidden_size": 6, "intermediate_size": 5, "num_local_experts": 8},
        **{"num_experts_per_tok": 3, "mamba_n_heads": 4},
    )
    theirs = kind.GraniteMoeHybridMoE(config)
    names = {"router__weight": theirs.router.weight}
    return theirs, {"top_k": 3}, names


def block_of_jamba():
    kind = pytest.importorskip("transformers.models.jamba.modeling_jamba")
    config = kind.JambaConfig(hidden_size=6, intermediate_size=5, num_experts=8)
    theirs = kind.JambaSparseMoeBlock(config)
    return theirs, {"normalise": False}, {"router__weight": theirs.router.weight}


def block_of_nemotron(latent):
    kind = pytest.importorskip("transformers.models.nemotron_h.modeling_nemotron_h")
    sizes = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
    sizes |= {"hidden_size": 6, "moe_intermediate_size": 5, "moe_latent_size": latent}
    config = kind.NemotronHConfig(moe_shared_expert_intermediate_size=7, **sizes)
    theirs = kind.NemotronHMoE(config)
    theirs.gate.e_score_correction_bias.normal_()
    options = {"router": "sigmoid", "corrected": True, "n_groups": 4, "top_groups": 2}
    options |= {"scale": 2.5, "activation": "relu2", "d_shared": 7, "d_latent": latent}
    names = {
        "router__weight": theirs.gate.weight,
        "correction": theirs.gate.e_score_correction_bias,
    }
    names |= {
        f"shared__{p}__weight": getattr(theirs.shared_experts, f"{p}_proj").weight
        for p in ("up", "down")
    }
    if latent:
        names["latent_in__weight"] = theirs.fc1_latent_proj.weight
        names["latent_out__weight"] = theirs.fc2_latent_proj.weight
    return theirs, options, names


def block_of_qwen():
    kind = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    sizes = {"hidden_size": 6, "moe_intermediate_size": 5, "num_experts": 8}
    config = kind.Qwen3NextConfig(**sizes, shared_expert_intermediate_size=4, num_experts_per_tok=2)
    theirs = kind.Qwen3NextSparseMoeBlock(config)
    names = {"router__weight": theirs.gate.weight}
    names["shared_gate__weight"] = theirs.shared_expert_gate.weight
    names |= {
        f"shared__{p}__weight": getattr(theirs.shared_expert, f"{p}_proj").weight
        for p in ("gate", "up", "down")
    }
    options = {"d_shared": 4, "shared_gate": True, "normalise": config.norm_topk_prob}
    return theirs, options, names


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        *((block_of_granite, ()), (block_of_jamba, ()), (block_of_qwen, ())),
        *((block_of_nemotron, (None,)), (block_of_nemotron, (3,))),
    ],
)
def test_blocks_of_transformers(block, arguments):
    torch.manual_seed(0)
    theirs, options, names = block(*arguments)
    for x in theirs.parameters():
        torch.nn.init.normal_(x, std=0.5)
    first = "up" if options.get("activation") == "relu2" else "gate_up"
    names |= {first: getattr(theirs.experts, f"{first}_proj"), "down": theirs.experts.down_proj}
    moe = copy(MoE(6, n_experts=8, d_inner=5, **options), **names)
    assert {n.replace(".", "__") for n, _ in moe.named_parameters()} == names.keys()
    z = torch.randn(2, 9, 6)
    with torch.no_grad():
        expected = theirs(z)
        expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(moe(z), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"top_k": 9}, "top_k must be at most 8, the experts that there are to choose from, got 9"),
        ({"n_groups": 3}, "n_groups must divide n_experts=8 and be at least top_groups=1, got 3"),
        ({"n_groups": 4, "top_k": 3}, "top_k must be at most 2"),
        ({"shared_gate": True}, "shared_gate must be False for d_shared=0"),
        ({"scale": 0.0}, "scale must be"),
        ({"eps": 0.0}, "eps must be"),
    ],
)
def test_errors(options, text):
    with pytest.raises(ArgumentError, match=text):
        MoE(6, **options)
    with pytest.raises(UnknownNameError, match="router"):
        MoE(6, router="argmax")
