"""A model of transformers on our ops is the model: every family, every use, judged by float64."""

import statistics

import pytest
import torch

transformers = pytest.importorskip("transformers")

from accelerated import FAMILIES, VOCABULARY, build, exact, in_float64, plain, relative  # noqa: E402
from linrnn.interop import accelerate  # noqa: E402

#: In which every recurrence occurs; the others are slow tests.
QUICK = ("mamba", "mamba2", "qwen3_next", "kimi_linear", "lfm2", "recurrent_gemma", "rwkv", "xlstm")
#: Of the error of transformers in the same dtype, and besides of the size of the result.
TIMES, BESIDES = 2, 1e-6
#: For a gradient alone; all together have no more than TIMES. The largest measured, of gates of
#: bailing_hybrid over four seeds: 5.3e-6 for 1.3e-6 (2026-11-28, AVX-512).
ALONE = 4
#: RecurrentGemma reads each prompt as a first one, whatever it has in its modules.
#: What transformers itself refuses.
NO_BEAMS, NO_BFLOAT16 = ("rwkv", "xlstm"), ("xlstm",)
CONTINUING = [name for name in FAMILIES if name != "recurrent_gemma"]
WIDTH, BATCH, TIME = 64, 2, 70


def marked(names):
    slow = pytest.mark.slow
    return [x if x in QUICK else pytest.param(x, marks=slow) for x in names]


each_family = pytest.mark.parametrize("family", marked(FAMILIES))


@pytest.fixture
def model(family):
    transformers.logging.set_verbosity_error()
    model = build(family, WIDTH)
    with plain(model):
        yield model


def tokens(rows=BATCH, time=TIME):
    return torch.randint(2, VOCABULARY, (rows, time))


def three_ways(model, call):
    """The results of a call in float64, by transformers and by ours."""
    with in_float64():
        expected = call(exact(model))
    theirs = call(model)
    with accelerate(model) as report:
        assert report.replaced
        ours = call(model)
    return expected, theirs, ours


def judge(expected, theirs, ours, besides=BESIDES, times=TIMES):
    """Names of results that are further off than those of transformers."""
    assert expected.keys() == theirs.keys() == ours.keys()
    errors = {
        name: (relative(ours[name], exact), relative(theirs[name], exact))
        for name, exact in expected.items()
    }
    mean = tuple(statistics.fmean(pair[i] ** 2 for pair in errors.values()) ** 0.5 for i in (0, 1))
    too_far = {name: pair for name, pair in errors.items() if pair[0] > times * pair[1] + besides}
    return too_far if mean[0] <= TIMES * mean[1] + besides else {**too_far, "on average": mean}


def trained(ids):
    def call(model):
        model.train()
        model.zero_grad()
        out = model(ids, labels=ids, use_cache=False)
        out.loss.backward()
        model.eval()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        return {"logits": out.logits.detach(), "loss": out.loss.detach(), **grads}

    return call


@each_family
def test_logits_and_every_gradient(model):
    assert judge(*three_ways(model, trained(tokens())), times=ALONE) == {}


def continued(ids, cuts):
    """Logits of a sequence that is read in parts, each with the cache of those before."""

    def call(model):
        logits, cache = [], {}
        with torch.no_grad():
            for part in ids.split(cuts, 1):
                out = model(part, use_cache=True, **cache)
                name = next(n for n in ("past_key_values", "cache_params", "state") if n in out)
                cache = {name: out[name]}
                logits.append(out.logits)
        return {"logits": torch.cat(logits, 1)}

    return call


@pytest.mark.parametrize("family", marked(CONTINUING))
def test_a_prompt_in_two_parts_and_single_tokens(model):
    cuts = [TIME - 40, 37, 1, 1, 1]
    assert judge(*three_ways(model, continued(tokens(), cuts))) == {}


def written(ids, **options):
    def call(model):
        answer = model.generate(ids, max_new_tokens=12, do_sample=False, **options)
        return answer.tolist()

    return call


@each_family
def test_the_tokens_it_writes(family, model):
    ids = tokens(time=21)
    padded = ids.clone()
    padded[0, :6] = 0
    mask = (padded != 0).long()
    calls = [written(ids, attention_mask=torch.ones_like(ids))]
    calls.append(written(padded, attention_mask=mask))
    if family not in NO_BEAMS:
        calls.append(written(ids, attention_mask=torch.ones_like(ids), num_beams=3))
    for call in calls:
        theirs = call(model)
        with accelerate(model):
            assert call(model) == theirs


@each_family
def test_rows_do_not_see_each_other(model):
    ids = tokens()
    with accelerate(model), torch.no_grad():
        both = model(ids, use_cache=False).logits
        apart = torch.cat([model(row[None], use_cache=False).logits for row in ids])
    assert relative(both, apart) < 1e-5


@each_family
def test_it_is_one_model_alone_and_leaves_no_trace(family, model):
    other, ids = build(family, WIDTH, seed=1), tokens()
    before = {id(part): {*vars(part)} for part in model.modules()}
    with torch.no_grad():
        first, second = (x(ids, use_cache=False).logits for x in (model, other))
        with accelerate(model):
            model(ids, use_cache=False)
            assert torch.equal(other(ids, use_cache=False).logits, second)
        assert torch.equal(model(ids, use_cache=False).logits, first)
    assert {id(part): {*vars(part)} for part in model.modules()} == before


@pytest.mark.parametrize("family", marked([x for x in FAMILIES if x not in NO_BFLOAT16]))
def test_bfloat16(model):
    ids = tokens()

    def call(model):
        with torch.no_grad():
            return {"logits": model(ids, use_cache=False).logits}

    with in_float64():
        expected = call(exact(model))
    model.bfloat16()
    theirs = call(model)
    with accelerate(model):
        ours = call(model)
        written(ids)(model)
    assert ours["logits"].dtype == theirs["logits"].dtype
    assert judge(expected, theirs, ours, besides=4e-3) == {}
