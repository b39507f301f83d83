"""Every option does something that is seen, alone and beside each other option."""

import dataclasses
import inspect
import itertools
from functools import cache

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import LinrnnError
from linrnn.generation import Sampling
from linrnn.learn import Batch, LearningSession, Loop
from linrnn.state import detach
from linrnn.train import OptimConfig
from linrnn.train.optim import lr_factor, make_optimizer

# Generation ------------------------------------------------------------------------------------

LOGITS = torch.tensor([1.5, 1.0, 0.6, 0.2, -0.3, -1.0], dtype=torch.float64)
DRAWS = 3000


def probabilities(temperature, top_k, top_p):
    """Those of the likeliest, as many as top_k says and as come to top_p, at the temperature."""
    p = (LOGITS / temperature).softmax(0)  # LOGITS fall
    p = torch.where(torch.arange(len(p)) < (top_k or len(p)), p, 0)
    p = p / p.sum()
    before = p.cumsum(0) - p
    p = torch.where(before < top_p, p, 0)
    return p / p.sum()


TEMPERATURES, TOP_K, TOP_P = (0.5, 1.0, 2.5), (0, 3, 5), (0.6, 0.85, 1.0)
#: A third of all, in which every two values of two options meet; the others are slow.
SAMPLINGS = [
    pytest.param(
        TEMPERATURES[i], TOP_K[j], TOP_P[k], marks=[pytest.mark.slow] if (i + j + k) % 3 else []
    )
    for i, j, k in itertools.product(range(3), repeat=3)
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLINGS)
def test_draws_have_the_probabilities_of_all_options_together(temperature, top_k, top_p):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([sampling.draw(LOGITS, generator) for _ in range(DRAWS)])
    found = torch.bincount(drawn, minlength=len(LOGITS)) / DRAWS
    p = probabilities(temperature, top_k, top_p)
    spread = (p * (1 - p) / DRAWS).sqrt()
    assert ((found - p).abs() <= 4.5 * spread).all()  # 27 x 6 numbers: one in 900 by chance


# Models ----------------------------------------------------------------------------------------

MODEL = {
    "mixer": "gru",
    "mixer_options": "d_state=5",
    "d_model": 6,
    "n_layers": 3,
    "tiers": (2,),
    "expand": 3,
    "unet": True,
    "norm": "layer",
    "norm_eps": 0.1,
    "prenorm": False,
    "out_norm": ("lru",),
    "skip_scale": 0.5,
    "skip": False,
    "dropout": 0.5,
    "block": "geglu",
    "block_pattern": ("glu", "swiglu"),
    "block_options": "gate_scale=0.5",
    "residual_scale": 0.5,
    "head_scale": 0.5,
    "conv_width": 3,
    "d_ffn": 7,
    "bidirectional": True,
    "pool": "last",
    "encoder": "tokens",
    "identity_ends": "both",
    "ends_init": "rwkv",
    "encoder_norm": True,
    "encoder_scale": 2.0,
    "final_norm": True,
    "head_bias": False,
    "logit_soft_cap": 0.1,
    "tie_embeddings": True,
    "documents": 2,
}
NEEDS = {  # an option that means something beside another alone
    "expand": {"tiers": (2,)},
    "unet": {"tiers": (2,)},
    "d_ffn": {"block": "swiglu"},
    "block_options": {"block": "swiglu"},
    "tie_embeddings": {"encoder": "tokens"},
}


@cache
def answered(options):
    """Shapes of a model's parameters, and its outputs in training."""
    torch.manual_seed(0)
    mappings = {"mixer_options": {"d_state": 5}, "block_options": {"swiglu": {"gate_scale": 0.5}}}
    options = {n: mappings.get(n, v) for n, v in options}
    documents, tokens = options.get("documents", 1), options.get("encoder") == "tokens"
    model = SequenceModel(4, 4, **{"d_model": 4, "n_layers": 2, **options}, dtype=torch.float64)
    random = torch.Generator().manual_seed(1)
    shape = (3, *([2] if documents == 2 else []), 6)
    x = torch.randn(*shape, 4, dtype=torch.float64, generator=random)
    y, _ = model(x.argmax(-1) if tokens else x)
    return {n: tuple(p.shape) for n, p in model.named_parameters()}, y.detach()


def model_with(*names):
    options = {n: v for name in names for n, v in NEEDS.get(name, {}).items()}
    options |= {n: MODEL[n] for n in names}
    return answered(tuple(sorted(options.items(), key=lambda item: item[0])))


def same(one, other):
    """Whether two models are and answer the same."""
    (shapes, y), (shapes_2, y_2) = one, other
    return shapes == shapes_2 and y.shape == y_2.shape and torch.equal(y, y_2)


def test_every_option_of_a_model_is_tried():
    named = inspect.signature(SequenceModel).parameters
    defaults = {n for n, p in named.items() if p.default is not inspect.Parameter.empty}
    assert defaults - {"device", "dtype"} == MODEL.keys()


@pytest.mark.parametrize("name", MODEL)
def test_every_option_of_a_model_acts_beside_each_other(name):
    tried = 0
    for beside in MODEL:
        if {name, beside} == {"block", "block_pattern"}:  # one stands in the place of the other
            continue
        if beside == name or name in NEEDS.get(beside, {}) or beside in NEEDS.get(name, {}):
            continue
        needs = {n: v for n, v in NEEDS.get(name, {}).items() if n != beside}
        try:
            whole = model_with(name, beside)
            rest = {**needs, **NEEDS.get(beside, {}), beside: MODEL[beside]}
            without = answered(tuple(sorted(rest.items(), key=lambda item: item[0])))
        except LinrnnError:  # the two are refused together
            continue
        tried += 1
        assert not same(whole, without), f"{name} does nothing beside {beside}"
    assert tried > len(MODEL) // 2


# Learners --------------------------------------------------------------------------------------

LEARNERS = {
    "bptt": {"recompute": 2, "reverse": True},
    "tbptt": {"window": 2, "overlap": 1, "update": "window"},
    "rtrl": {"window": 2, "update": "window"},
    "chunked_rtrl": {"window": 2, "update": "window"},
    "diagonal_rtrl": {"update": "step"},
    "snap": {"n": 2, "last_step": "whole", "parts": "together", "update": "step"},
    "uoro": {"copies": 3, "update": "step"},
    "rbp": {
        "hold": 2, "settled": 0.5, "solver": "cg", "terms": 2, "lipschitz": 0.5, "bound": 0.1,
        "columns": "absolute",
    },
    "predictive_coding": {"window": 2, "iterations": 2, "rate": 0.3, "predictions": "moving"},
    "lifted": {
        "window": 2, "method": "admm", "penalty": 0.5, "iterations": 2, "rounds": 2, "rate": 0.02,
        "update": "round",
    },
    "local_representation_alignment": {
        "window": 2,
        "update": "window",
        "feedback": 0.5,
        "beta": 0.5,
        "rate": 0.5,
    },
    "fptt": {"parts": 2, "alpha": 0.2, "beta": 0.9, "soft": "running", "decay": 0.5},
    "gtf": {"schedule": "annealed", "alpha": 0.3, "decay": 0.5, "points": 1},
    "ridge": {"penalty": 0.5, "washout": 2, "frozen": True},
    "stagewise": {"every": 2, "window": 2, "update": "window"},
}  # fmt: skip


def test_every_option_of_a_learner_is_tried():
    assert LEARNERS.keys() == set(learn.names())
    for name, options in LEARNERS.items():
        named = inspect.signature(learn.load(name)).parameters
        assert named.keys() == options.keys(), name


def learned(rule, options):
    """The weights after two batches of steps of SGD that the learner takes or leaves to a loop."""
    return _learned(rule, tuple(sorted(options.items(), key=lambda item: item[0])))


@cache
def _learned(rule, options):
    torch.manual_seed(0)
    kind = "lstm" if rule in ("snap", "uoro", "local_representation_alignment", "fptt") else "lru"
    model = SequenceModel(
        2, 3, mixer=kind, d_model=3, n_layers=1, norm="layer", pool="none", dtype=torch.float64
    )
    random = torch.Generator().manual_seed(1)
    learner = learn.build(rule, dict(options))
    sgd = torch.optim.SGD(model.parameters(), 0.5)

    def update():
        sgd.step()
        sgd.zero_grad()

    state = None
    for _ in range(2):
        x = torch.randn(2, 5, 2, dtype=torch.float64, generator=random)
        target = torch.randn(2, 5, 3, dtype=torch.float64, generator=random)
        step = learner.step(
            model, Batch(x, target, None, None), state, Loop(mse_loss, update=update)
        )
        state = step.state
        update()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def alike(one, other):
    return torch.allclose(one, other, rtol=1e-10, atol=1e-12)


BASE = {"tbptt": {"window": 3}, "chunked_rtrl": {"window": 3}}  # so that there are two windows
IDLE = {  # pairs of which the first has nothing to do beside the second, and why
    ("snap", "last_step", "n"): "two steps reach all of a full matrix: nothing is masked",
    ("snap", "parts", "n"): "the same",
    (
        "local_representation_alignment",
        "window",
        "feedback",
    ): "all that is added up is the same for any window",
    ("local_representation_alignment", "window", "beta"): "the same",
    ("local_representation_alignment", "window", "rate"): "the same",
}


@pytest.mark.parametrize(
    "rule", ["tbptt", "chunked_rtrl", "snap", "uoro", "local_representation_alignment"]
)
def test_every_option_of_a_windowed_rule_acts_beside_each_other(rule):
    options, base = LEARNERS[rule], BASE.get(rule, {})
    for name, beside in itertools.permutations(options, 2):
        whole = learned(rule, {**base, name: options[name], beside: options[beside]})
        without = learned(rule, {**base, beside: options[beside]})
        idle = (rule, name, beside) in IDLE
        assert alike(whole, without) == idle, f"{name} beside {beside}"


@pytest.mark.parametrize("name", ["soft", "decay"])
def test_soft_answers_of_fptt_act_beside_each_other_option(name):
    options, more = LEARNERS["fptt"], {"soft": "running"} if name == "decay" else {}
    for beside in options.keys() - {name, "soft"}:
        base = {**more, beside: options[beside]}
        base |= {"parts": 2}
        if name == "soft" and beside == "decay":
            continue  # the same pair as that of decay beside a running answer
        whole, without = (classified({**base, **o}) for o in ({name: options[name]}, {}))
        assert not alike(whole, without), f"{name} does nothing beside {beside}"


def classified(options):
    """As `learned`, of a model with one answer to a sequence."""
    torch.manual_seed(0)
    model = SequenceModel(2, 3, mixer="gru", d_model=3, n_layers=1, norm="layer", pool="last")
    learner, sgd = learn.build("fptt", options), torch.optim.SGD(model.parameters(), 0.5)

    def update():
        sgd.step()
        sgd.zero_grad()

    x = torch.randn(4, 6, 2)
    batch = Batch(x, torch.tensor([0, 1, 2, 0]), None, None)
    for _ in range(3):
        learner.step(model, batch, None, Loop(torch.nn.functional.cross_entropy, update=update))
        update()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# The optimiser ---------------------------------------------------------------------------------

OPTIM = {
    "lr": 0.1,
    "recurrent_lr_factor": 0.1,
    "weight_decay": 0.5,
    "warmup_fraction": 0.5,
    "schedule": "constant",
    "min_lr": 1e-4,
    "clip": 0.01,
    "betas": (0.5, 0.6),
}


def optimised(**options):
    """Weights after some steps of the optimiser along its schedule, on gradients that are drawn."""
    return _optimised(tuple(sorted(options.items(), key=lambda item: item[0])))


@cache
def _optimised(options):
    config = OptimConfig(**dict(options))
    torch.manual_seed(0)
    model = SequenceModel(1, 2, d_model=3, n_layers=1, dtype=torch.float64)
    optimizer = make_optimizer(model, config)
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(8):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * lr_factor(step, 8, config)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_every_option_of_the_optimiser_is_tried():
    assert {f.name for f in dataclasses.fields(OptimConfig)} == OPTIM.keys()


@pytest.mark.parametrize(
    ("name", "beside"), list(itertools.permutations(sorted(OPTIM.keys() - {"clip"}), 2))
)
def test_every_option_of_the_optimiser_acts_beside_each_other(name, beside):
    """A clip is the loop's; what a constant rate ends in is nothing that it comes to."""
    if (name, beside) == ("min_lr", "schedule"):
        assert alike(optimised(min_lr=1e-4, schedule="constant"), optimised(schedule="constant"))
        return
    whole = optimised(**{name: OPTIM[name], beside: OPTIM[beside]})
    assert not alike(whole, optimised(**{beside: OPTIM[beside]}))


# Streams that are learned from -----------------------------------------------------------------


class Drawing(learn.Learner):
    """Draws a number for each piece, and learns nothing else."""

    def __init__(self):
        self.drawn = []

    def step(self, model, batch, carried, loop):
        self.drawn.append(float(torch.rand(())))
        y, state = model(batch.x, carried)
        loss = loop.loss(y, batch.target)
        loop.backward(loss)
        return learn.Step(loss.detach(), y.detach(), detach(state))


def stream(learner, **options):
    torch.manual_seed(0)
    model = SequenceModel(1, 1, d_model=3, n_layers=1, norm="layer", pool="none").eval()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return LearningSession(model, learner, mse_loss, sgd, **options)


def test_every_piece_of_a_stream_draws_numbers_of_its_own():
    """By the seed and the number of the piece: other seeds are others, and a stream goes on."""
    x = torch.linspace(-1, 1, 12)[:, None]
    whole, first, rest, other = Drawing(), Drawing(), Drawing(), Drawing()
    stream(whole, every=3, seed=5).feed(x, x)
    assert len(set(whole.drawn)) == 4
    session = stream(first, every=3, seed=5)
    session.feed(x[:6], x[:6])
    again = stream(rest, every=3, seed=5)
    again.load_state_dict(session.state_dict())
    again.feed(x[6:], x[6:])
    assert first.drawn + rest.drawn == whole.drawn
    stream(other, every=3, seed=50).feed(x, x)
    assert not set(other.drawn) & set(whole.drawn)


STREAM = {"every": 2, "clip": 1e-3, "seed": 7}


@cache
def streamed(*names):
    """Weights after a stream with these options."""
    x = torch.linspace(-1, 1, 8)[:, None]
    session = stream(learn.build("uoro"), **{name: STREAM[name] for name in names})
    session.feed(x, x.flip(0))
    return torch.cat([p.detach().flatten() for p in session.model.parameters()])


@pytest.mark.parametrize(("name", "beside"), list(itertools.permutations(STREAM, 2)))
def test_every_option_of_a_stream_acts_beside_each_other(name, beside):
    assert not torch.equal(streamed(*sorted({name, beside})), streamed(beside))
