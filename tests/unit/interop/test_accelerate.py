"""Attaching to a model and to the process: what it survives, what it leaves, what it says."""

import copy
import functools
import importlib
import inspect
import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from accelerated import VOCABULARY, build, exact, in_float64, plain, relative  # noqa: E402
from linrnn.errors import ArgumentTypeError  # noqa: E402
from linrnn.interop import accelerate  # noqa: E402
from linrnn.interop._accelerate import functions  # noqa: E402
from linrnn.interop._accelerate.table import FAMILIES, FUNCTIONS, METHODS  # noqa: E402
from linrnn.interop._accelerate.theirs import Theirs, is_ours  # noqa: E402

STORED = json.loads(Path(__file__).with_name("accelerate_functions.json").read_text())
WIDTH = 64
TRANSFORMERS = Path(transformers.__file__).parent


@pytest.fixture
def model(request):
    transformers.logging.set_verbosity_error()
    model = build(getattr(request, "param", "mamba2"), WIDTH)
    with plain(model):
        yield model


of = functools.partial(pytest.mark.parametrize, "model", indirect=True)


def tokens(rows=2, time=33):
    return torch.randint(2, VOCABULARY, (rows, time))


def logits(model, ids, **options):
    with torch.no_grad():
        return model(ids, use_cache=False, **options).logits


def computes_ours(model):
    """Whether the model's convolutions are ours, by the functions that its methods look up."""
    part = next(x for x in model.modules() if type(x).__name__.endswith("Mixer"))
    return is_ours(inspect.unwrap(part.forward.__func__).__globals__["causal_conv1d_fn"])


def test_the_report_says_what_was_replaced(model):
    report = accelerate(model)
    assert ("backbone.layers.0.mixer", "mamba2_chunk_scan", "outer_scan") in report.replaced
    assert len(report.replaced) == 4 * 4
    assert "mamba2_chunk_scan: outer_scan, 4 times" in str(report)
    assert report.left == ()
    assert report.attached
    report.detach()
    report.detach()
    assert not report.attached
    assert not computes_ours(model)


def test_a_second_call_changes_nothing(model):
    with accelerate(model):
        with accelerate(model) as again:
            assert computes_ours(model)
            assert len(again.replaced) == 16
        assert not computes_ours(model)


def test_a_copy_is_attached_to_itself(model):
    ids = tokens()
    with accelerate(model):
        other = copy.deepcopy(model)
        mixer = other.backbone.layers[0].mixer
        assert mixer.forward.__self__ is mixer
        assert torch.equal(logits(other, ids), logits(model, ids))
    assert computes_ours(other)
    accelerate(other).detach()
    assert not computes_ours(other)


def test_a_pickled_model_is_the_plain_one(model):
    ids = tokens()
    expected = logits(model, ids)
    with accelerate(model) as report:
        loaded = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own
        with pytest.raises(TypeError, match="must stay in its process"):
            pickle.dumps(report)
    assert torch.equal(logits(loaded, ids), expected)
    with accelerate(loaded) as report:
        assert len(report.replaced) == 16
        assert computes_ours(loaded)


def test_saved_files_are_the_same(model, tmp_path):
    model.save_pretrained(tmp_path / "plain")
    with accelerate(model):
        model.save_pretrained(tmp_path / "attached")
    plain_files, attached = (sorted((tmp_path / x).iterdir()) for x in ("plain", "attached"))
    assert [x.name for x in plain_files] == [x.name for x in attached]
    assert [x.read_bytes() for x in plain_files] == [x.read_bytes() for x in attached]


@pytest.mark.parametrize("first", ["hook", "ours"])
def test_hooks_of_the_package_accelerate(model, first):
    hooks = pytest.importorskip("accelerate.hooks")
    calls = []

    class Noting(hooks.ModelHook):
        def pre_forward(self, module, *args, **kwargs):
            calls.append(module)
            return args, kwargs

    mixer, ids = model.backbone.layers[0].mixer, tokens()
    expected = logits(model, ids)
    report = accelerate(model) if first == "ours" else None
    for part in (mixer, mixer.conv1d):
        hooks.add_hook_to_module(part, Noting())
    report = accelerate(model) if report is None else report
    got = logits(model, ids)
    assert calls == [mixer, mixer.conv1d]  # the convolution's weights are moved for ours as well
    assert 0 < relative(got, expected) < 1e-5
    report.detach()
    assert torch.equal(logits(model, ids), expected)
    hooks.remove_hook_from_module(mixer)
    assert torch.equal(logits(model, ids), expected)


def test_a_method_that_others_have_bound_stays(model):
    mixer = model.backbone.layers[0].mixer
    mixer.forward = functools.partial(type(mixer).forward, mixer)
    with accelerate(model) as report:
        assert {row.module for row in report.left} == {"backbone.layers.0.mixer"}
        assert "another library has bound its method" in str(report)
        assert len(report.replaced) == 12


def test_a_function_with_other_arguments_stays(model, monkeypatch):
    module = sys.modules[type(model).__module__]

    def changed(hidden_states, weight, bias=None, activation=None, more=None):
        raise AssertionError

    monkeypatch.setattr(module, "causal_conv1d_fn", changed)
    with accelerate(model) as report:
        assert "causal_conv1d_fn: left, its arguments are others: hidden_states, weight, " in str(
            report
        )
        assert len(report.replaced) == 12


@pytest.mark.unchecked
def test_what_is_no_module_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"accelerate: model must be a torch\.nn\.Module"):
        accelerate(3)


def test_a_model_without_recurrence_warns():
    with pytest.warns(UserWarning, match="no recurrence in Linear"):
        report = accelerate(torch.nn.Linear(2, 2))
    assert str(report) == "nothing to replace"


def test_a_peft_model_learns(model):
    peft = pytest.importorskip("peft")
    lora = peft.get_peft_model(model, peft.LoraConfig(target_modules=["in_proj"], r=2))
    ids = tokens()
    expected = logits(lora, ids)
    with accelerate(lora) as report:
        assert len(report.replaced) == 16
        lora.train()
        lora(ids, labels=ids).loss.backward()
        lora.eval()
        assert relative(logits(lora, ids), expected) < 1e-5
    grads = [p.grad for n, p in lora.named_parameters() if "lora_B" in n]
    assert grads
    assert all(grad.norm() > 0 for grad in grads)


def gradients(model, ids):
    model.train()
    model.zero_grad()
    model(ids, labels=ids, use_cache=False).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_gradient_checkpoints(model):
    ids = tokens()
    with accelerate(model):
        expected = gradients(model, ids)
        model.gradient_checkpointing_enable()
        assert relative(gradients(model, ids), expected) < 1e-6


@of(["mamba", "mamba2", "qwen3_next", "rwkv", "recurrent_gemma"])
def test_autocast_rounds_as_theirs_does(model):
    ids = tokens()
    expected = logits(model, ids)
    with torch.autocast("cpu", torch.bfloat16):
        theirs = logits(model, ids)
        with accelerate(model):
            ours = logits(model, ids)
    assert ours.dtype == theirs.dtype
    assert relative(ours, expected) < 2 * relative(theirs, expected) + 4e-3


def test_an_exported_program_has_their_operators(model):
    class Convolution(torch.nn.Module):
        def forward(self, x, weight):
            return convolution(x, weight)

    module = sys.modules[type(model).__module__]
    convolution = functions.convolution(Theirs(module.causal_conv1d_fn))
    inputs = (torch.randn(1, 3, 8), torch.randn(3, 4))
    exported = torch.export.export(Convolution(), inputs)
    assert "linrnn" not in exported.graph_module.code
    assert relative(exported.module()(*inputs), convolution(*inputs)) < 1e-6


@pytest.mark.slow
def test_a_trainer_trains_it_as_without(model, tmp_path):
    rows = [{"input_ids": x, "labels": x} for x in tokens(4)]
    arguments = transformers.TrainingArguments(
        tmp_path, max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, seed=1
    )
    weights = []
    for attached in (False, True):
        other = copy.deepcopy(model)
        report = accelerate(other) if attached else None
        transformers.Trainer(other, arguments, train_dataset=rows).train()
        weights.append(torch.cat([x.flatten() for x in other.parameters()]))
        if report is not None:
            report.detach()
    # a step of Adam is as long whatever the gradient's size: a rounded zero turns it around
    assert relative(weights[1].detach(), weights[0].detach()) < 1e-4


@pytest.mark.slow
@pytest.mark.unchecked
@of(["mamba2", "qwen3_next"])
def test_torch_compile(model):
    ids = tokens(time=40)
    expected = logits(model, ids)
    with accelerate(model), torch.no_grad():
        compiled = torch.compile(model)
        got = compiled(ids, use_cache=False).logits
    assert relative(got, expected) < 1e-5
    assert relative(logits(model, ids), expected) == 0


@pytest.mark.parametrize("family", ["bamba", "qwen3_next", "kimi_linear", "lfm2"])
def test_packed_sequences_are_as_if_apart(family):
    model = build(family, WIDTH)
    lengths = (9, 1, 20)
    rows = [tokens(1, n) for n in lengths]
    offsets = torch.tensor([0, 9, 10, 30], dtype=torch.int32)
    index = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)).view(1, -1)
    marks = {
        "position_ids": torch.cat([torch.arange(n) for n in lengths]).view(1, -1),
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }
    takes = inspect.signature(type(model).forward).parameters
    if "position_ids" not in takes:  # models without attention
        marks = {}
    with pytest.raises(ValueError, match="packed sequences apart"):
        logits(model, torch.cat(rows, 1), **marks, seq_idx=index.int())
    with accelerate(model):
        got = logits(model, torch.cat(rows, 1), **marks, seq_idx=index.int())
        apart = torch.cat([logits(model, row) for row in rows], 1)
    assert relative(got, apart) < 1e-5


def test_packed_sequences_that_a_scan_is_not_told_of_are_refused():
    module = importlib.import_module("transformers.models.zamba.modeling_zamba")
    convolution = functions.convolution(Theirs(module.causal_conv1d_fn))
    with pytest.raises(ValueError, match="packed sequences apart"):
        convolution(torch.ones(1, 2, 8), torch.ones(2, 4), seq_idx=torch.zeros(1, 8))


@of(["mamba", "mamba2", "qwen3_next", "rwkv"])
def test_double_precision_stays_double(model):
    ids = tokens()
    with in_float64():
        double = exact(model)
        expected = logits(double, ids)
        with accelerate(double):
            assert relative(logits(double, ids), expected) < 1e-12


def folders():
    for path in sorted((TRANSFORMERS / "models").glob("*/modeling_*.py")):
        text = path.read_text(encoding="utf-8")
        if any(f"def {name}(" in text for name in FUNCTIONS) or any(
            f"class {kind}(" in text and f"def {method}(" in text for _, kind, method in METHODS
        ):
            yield path.parent.name


def test_every_family_that_has_the_functions_is_listed():
    assert list(folders()) == sorted(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_functions_have_the_arguments_that_were_read(family):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    present = {
        name: list(inspect.signature(getattr(module, name)).parameters)
        for name in FUNCTIONS
        if hasattr(module, name)
    }
    for (place, kind, method), _ in METHODS.items():
        if place == module.__name__:
            function = getattr(getattr(module, kind), method)
            present[f"{kind}.{method}"] = list(inspect.signature(function).parameters)
    assert present == STORED[family]
    for name, parameters in present.items():
        row = FUNCTIONS.get(name) or next(r for key, r in METHODS.items() if name.endswith(key[2]))
        assert tuple(parameters) == row.parameters


def run(code, **environment):
    """The output of a fresh interpreter."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    path = Path(__file__).parents[3] / "benchmarks"
    variables = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**variables, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_every_model_of_the_process_by_the_environment():
    answer = run(
        """
        import sys, linrnn
        print("torch" in sys.modules, "transformers" in sys.modules)
        import torch
        from _hf_families import build
        from linrnn.interop import accelerate
        from linrnn.interop._accelerate.theirs import is_ours
        model = build("mamba2", 32)  # its module comes after linrnn
        module = sys.modules[type(model).__module__]
        print(is_ours(module.mamba2_chunk_scan))
        model.generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=2)
        """,
        LINRNN_ACCELERATE="1",
    )
    assert answer == ["False", "False", "True"]


@pytest.mark.slow
def test_every_model_of_the_process_until_it_is_detached():
    answer = run(
        """
        import sys, torch, transformers.models.mamba2.modeling_mamba2 as module
        import transformers.models.recurrent_gemma.modeling_recurrent_gemma as gemma
        from linrnn.interop import accelerate
        from linrnn.interop._accelerate.theirs import is_ours
        plain = module.mamba2_chunk_scan, gemma.RecurrentGemmaRglru._rnn_scan
        finders = list(sys.meta_path)
        with accelerate() as first, accelerate() as second:
            print(is_ours(module.mamba2_chunk_scan), is_ours(gemma.RecurrentGemmaRglru._rnn_scan))
            first.detach()
            print(is_ours(module.mamba2_chunk_scan), len(second.replaced))
        print(plain == (module.mamba2_chunk_scan, gemma.RecurrentGemmaRglru._rnn_scan))
        import transformers.models.mamba.modeling_mamba as later
        print(is_ours(later.mamba_selective_scan), sys.meta_path == finders)
        """
    )
    assert answer == ["True", "True", "True", "5", "True", "False", "True"]


@pytest.mark.slow
def test_kernels_for_gpus_that_were_installed_do_not_break_a_cpu(tmp_path):
    package = tmp_path / "fla"
    for folder in (package, package / "ops"):
        folder.mkdir()
    broken = textwrap.dedent(
        """
        def __getattr__(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return kernel

        def kernel(q, k, v, g, beta, initial_state=None, output_final_state=False, **more):
            raise RuntimeError("0 active drivers")
        """
    )
    (package / "__init__.py").write_text(broken)
    for inner in ("gated_delta_rule", "kda"):
        (package / "ops" / f"{inner}.py").write_text(broken)
    (package / "ops" / "__init__.py").write_text(broken)
    answer = run(
        f"""
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        import fla, torch
        assert fla.__file__.startswith({str(tmp_path)!r})
        from _hf_families import build
        from linrnn.interop import accelerate
        ids = torch.ones(1, 9, dtype=torch.long)
        for family in ("qwen3_next", "kimi_linear"):
            model = build(family, 32)
            try:
                model(ids)
            except RuntimeError as error:
                print(str(error).replace(" ", "_"))
            with accelerate(model):
                print(model.generate(ids, max_new_tokens=3, eos_token_id=None).shape[1])
        """
    )
    assert answer == ["0_active_drivers", "12"] * 2
