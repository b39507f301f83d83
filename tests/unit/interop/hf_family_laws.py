"""Laws of every family of transformers' models: `laws` runs all of them on small ones."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from linrnn.errors import ArgumentError, DataError
from linrnn.interop._hf_pretrained import _family
from linrnn.interop.hf import LinrnnForCausalLM, from_config, from_pretrained, to_pretrained

TIME = 21


class Double(TorchFunctionMode):
    """Has transformers compute in float64 what it computes in float32 whatever the weights are."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func is torch.Tensor.float else func
        wide = lambda x: torch.float64 if x is torch.float32 else x  # noqa: E731
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


def peer(config):
    """A model of transformers none of whose weights is what it starts from."""
    torch.manual_seed(0)
    with Double():  # buffers are computed from the configuration
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    with torch.no_grad():
        for name, x in model.state_dict().items():
            if x.is_floating_point() and not is_derived(config, name):
                x += 0.1 * torch.randn_like(x)
    return plainly(model)


def is_derived(config, name):
    """Whether a tensor of a model of transformers follows from its configuration."""
    return name.rpartition(".")[2] in getattr(_family(config.model_type), "derived", ())


def plainly(model):
    """Computed by products that know float64, too."""
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    return model


def ids(config, *shape):
    return torch.randint(1, config.vocab_size, shape)  # 0 is padding, which has no gradient


def logits_are_equal(config, atol=1e-9):
    theirs = peer(config)
    ours = from_pretrained(theirs)
    x = ids(config, 2, TIME)
    with Double(), torch.no_grad():
        expected = theirs(x, use_cache=False).logits
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(ours(x).logits, expected, rtol=1e-9, atol=atol)
    theirs, ours = theirs.float(), from_pretrained(theirs.float())
    torch.testing.assert_close(ours(x).logits, expected.float(), rtol=1e-5, atol=1e-5)


def gradients_are_equal(config):
    theirs = peer(config)
    ours, x = from_pretrained(theirs), ids(config, 2, TIME)
    with Double():
        theirs(x, use_cache=False).logits.square().mean().backward()
    ours(x).logits.square().mean().backward()
    our_grads, their_grads = (
        {n: p.grad for n, p in m.named_parameters(remove_duplicate=False)}
        for m in (ours.model, theirs)
    )
    compared = 0
    for weight in _family(config.model_type).weights(theirs.config):
        grads = [our_grads[name] for name in weight.ours]
        if all(g is None for g in grads):
            assert all(their_grads.get(name) is None for name in weight.theirs)
            continue
        zeros = weight.to_theirs([torch.zeros_like(g) for g in grads])
        for name, g, zero in zip(weight.theirs, weight.to_theirs(grads), zeros, strict=True):
            expected = their_grads[name]
            torch.testing.assert_close(
                (g - zero).view_as(expected), expected, rtol=1e-7, atol=1e-11
            )
            compared += 1
    assert compared > 5


def steps_are_equal(config):
    theirs = peer(config).float()
    ours, x = from_pretrained(theirs), ids(config, 2, 6)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = theirs.generate(x, attention_mask=torch.ones_like(x), **options)
    assert torch.equal(ours.generate(x, **options), expected)
    model, state = ours.model, ours.model.init_state(2)
    with torch.no_grad():
        for t in range(6):
            y, state = model.step(x[:, t], state)
        torch.testing.assert_close(y, model(x)[0][:, -1], rtol=1e-4, atol=1e-5)


def the_way_back_is_exact(config, folder):
    theirs = peer(config)
    ours, x = from_pretrained(theirs), ids(config, 1, TIME)
    ours.save_pretrained(folder)
    for model in (ours, from_pretrained(folder)):
        back = plainly(to_pretrained(model))
        assert type(back) is type(theirs)
        again, before = back.state_dict(), theirs.state_dict()
        assert again.keys() == before.keys()
        for name, value in before.items():
            rounded = 1e-6 if is_derived(config, name) else 1e-15  # those are made in float32
            torch.testing.assert_close(again[name], value, rtol=0, atol=rounded)
        with torch.no_grad():
            torch.testing.assert_close(back(x).logits, theirs(x).logits, rtol=1e-6, atol=1e-6)
    shutil.rmtree(folder)


def files_are_read(config, folder):
    theirs = peer(config).float()
    theirs.save_pretrained(folder)
    ours, x = from_pretrained(folder), ids(config, 1, TIME)
    torch.testing.assert_close(ours(x).logits, from_pretrained(theirs)(x).logits)
    path = folder / "model.safetensors"
    stored = load_file(path)
    name = sorted(stored)[0]
    for broken in (
        {**stored, "more.weight": torch.ones(2)},
        {n: v for n, v in stored.items() if n != name},
    ):
        save_file(broken, path, metadata={"format": "pt"})
        with pytest.raises(DataError, match=r"keys, such as|must"):
            from_pretrained(folder)


def others_are_refused(config):
    ours = LinrnnForCausalLM(from_config(config))
    to_pretrained(ours, config)
    values = config.to_dict() | {"vocab_size": config.vocab_size + 1}
    with pytest.raises(ArgumentError, match="to_pretrained: vocab_size must be"):
        to_pretrained(ours, type(config).from_dict(values))


def laws(config, folder):
    """All of them, on a small model of that configuration."""
    logits_are_equal(config)
    gradients_are_equal(config)
    steps_are_equal(config)
    the_way_back_is_exact(config, folder / "ours")
    files_are_read(config, folder / "theirs")
    others_are_refused(config)
