"""Folders of models from strangers: transformers never sees them, whatever they name."""

import json
import os
import shutil

import pytest
import torch

transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from linrnn.errors import DataError, LinrnnError  # noqa: E402
from linrnn.interop.hf import (  # noqa: E402
    LinrnnConfig,
    LinrnnForCausalLM,
    from_mamba,
    from_rwkv,
    from_xlstm,
    to_rwkv_weights,
)

pytestmark = pytest.mark.unchecked

SMALL = {"vocab_size": 7, "hidden_size": 4, "num_hidden_layers": 2}


def ours():
    return LinrnnForCausalLM(LinrnnConfig(vocab_size=7, mixer="mingru", d_model=4, n_layers=1))


def read_auto(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


class Finch:
    """RWKV-6, of which transformers has no class."""

    def save_pretrained(self, folder):
        config = LinrnnConfig(
            **{"vocab_size": 7, "mixer": "rwkv6", "d_model": 4, "n_layers": 2, "norm": "layer"},
            **{"block": "channel_mix", "encoder_norm": True, "head_bias": False},
        )
        folder.mkdir()
        save_file(to_rwkv_weights(LinrnnForCausalLM(config)), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "rwkv6", **SMALL}))


MODELS = {
    "linrnn": (ours, LinrnnForCausalLM.from_pretrained),
    "linrnn by its type": (ours, read_auto),
    "mamba": (lambda: transformers.MambaForCausalLM(transformers.MambaConfig(**SMALL)), from_mamba),
    "rwkv6": (Finch, from_rwkv),
    "rwkv": (lambda: transformers.RwkvForCausalLM(transformers.RwkvConfig(**SMALL)), from_rwkv),
    "xlstm": (
        lambda: transformers.xLSTMForCausalLM(transformers.xLSTMConfig(**SMALL, num_heads=1)),
        from_xlstm,
    ),
}
EVERY = pytest.mark.parametrize("model", MODELS)


@pytest.fixture
def saved(tmp_path, model):
    """A folder, and who reads it."""
    torch.manual_seed(0)
    make, read = MODELS[model]
    peer = make()
    peer.save_pretrained(tmp_path / "model")
    how = {"temperature": 0.5, "do_sample": True}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(how))
    return tmp_path / "model", read


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def logits(model):
    with torch.no_grad():
        return model.eval()(torch.arange(6)[None]).logits


def same(read, folder, expected):
    assert torch.equal(logits(read(folder)), expected)


# what a configuration can ask transformers to do, each of which must not even be looked at
ASKS = {
    "quantisation": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
    "quantisation by code": {"quantization_config": {"quant_method": "torchao", "quant_type": "x"}},
    "no such quantisation": {"quantization_config": {"quant_method": "nothing"}},
    "code": {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}},
    "code of others": {"auto_map": {"AutoModelForCausalLM": "some/where--evil.Model"}},
    "other weights": {"transformers_weights": "../elsewhere/model.safetensors"},
    "kernels": {"_attn_implementation": "kernels-community/evil", "use_kernels": True},
    "kernels of attention": {"attn_implementation": "kernels-community/evil"},
    "kernels of experts": {"experts_implementation": "kernels-community/evil"},
    "fusion": {"fusion_config": {"patch_embeddings": True}},
    "many devices": {"base_model_tp_plan": {"*": "colwise"}, "tp_plan": "auto"},
    "compression": {"compression_config": {"quant_method": "compressed-tensors"}},
    "another place": {"_name_or_path": "some/where", "base_model_name_or_path": "some/where"},
    "a dtype that is code": {"dtype": "load", "torch_dtype": "load"},
}


@EVERY
def test_what_a_configuration_asks_for_is_not_done(saved, monkeypatch):
    folder, read = saved
    expected, seen = logits(read(folder)), []
    config = folder / "config.json"
    whole = config.read_text()
    for name in ("get_hf_quantizer", "_get_resolved_checkpoint_files"):
        function = getattr(transformers.modeling_utils, name)

        def watched(*args, function=function, **options):
            seen.extend(a.to_dict() for a in args if isinstance(a, transformers.PreTrainedConfig))
            place = options.get("pretrained_model_name_or_path")
            assert place is None, "transformers was given the folder"
            return function(*args, **options)

        monkeypatch.setattr(transformers.modeling_utils, name, watched)
    (folder / "evil.py").write_text("raise SystemExit('it ran')")
    for asked, keys in ASKS.items():
        seen.clear()
        config.write_text(json.dumps(json.loads(whole) | keys))
        same(read, folder, expected)
        assert seen or read(folder).config.mixer == "rwkv6", asked
        for found in seen:
            assert not [key for key, value in keys.items() if found.get(key) == value], asked


@pytest.mark.parametrize("model", ["linrnn", "linrnn by its type", "mamba", "rwkv6"])
def test_what_generation_is_told_is_values_alone(saved):
    folder, read = saved
    change(
        folder / "generation_config.json",
        custom_generate="some/where",
        cache_implementation="static",
        compile_config={"backend": "evil"},
        assistant_early_exit=3,
    )
    found = read(folder).generation_config
    assert (found.temperature, found.do_sample) == (0.5, True)
    assert found.cache_implementation is None
    assert found.compile_config is None
    assert found.assistant_early_exit is None
    assert not hasattr(found, "custom_generate")


def sharded(folder):
    """The weights in two files and an index."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b-2.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file, {"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {name: file for file, part in parts.items() for name in part}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return path, index


@EVERY
def test_weights_in_several_files(saved):
    folder, read = saved
    expected = logits(read(folder))
    sharded(folder)
    same(read, folder, expected)


def elsewhere(folder):
    """A file outside that could be read."""
    place = folder.parent / "elsewhere"
    place.mkdir()
    shutil.copy(folder / "a.safetensors", place / "a.safetensors")
    return place / "a.safetensors"


@EVERY
def test_an_index_names_no_file_outside_its_folder(saved):
    folder, read = saved
    index, names = sharded(folder)
    outside = elsewhere(folder)
    (folder / "sub").symlink_to(outside.parent)
    (folder / "link.safetensors").symlink_to(outside)
    for said in (
        "../elsewhere/a.safetensors",
        str(outside),
        "sub/a.safetensors",
        "link.safetensors",
        "pytorch_model.bin",
        "a\n.safetensors",
        "",
        3,
    ):
        changed = {n: said if file == "a.safetensors" else file for n, file in names.items()}
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(DataError, match=r"in safetensors, got: (an index|a symbolic)"):
            read(folder)
    index.write_text("[]")
    with pytest.raises(DataError, match="got: an index without the files"):
        read(folder)


@pytest.mark.parametrize("model", ["linrnn", "mamba", "rwkv", "rwkv6", "xlstm"])
@pytest.mark.parametrize("kind", ["link", "link inside", "pipe", "folder"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "generation_config.json"])
def test_a_file_that_is_no_file_of_the_folder(saved, file, kind):
    folder, read = saved
    path = folder / file
    place = folder if kind == "link inside" else folder.parent
    path.rename(place / "moved.safetensors")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(place / "moved.safetensors")
    words = {"pipe": "a named pipe", "folder": "a folder"}
    with pytest.raises(DataError, match=words.get(kind, "a symbolic link, which is not followed")):
        read(folder)


def as_cached(folder, cache):
    """The folder as the hub's client keeps it: links to files named by their checksum."""
    repository = cache / "models--some--where"
    snapshot = repository / "snapshots" / ("0" * 40)
    for place in (snapshot, repository / "blobs", repository / "refs"):
        place.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    for i, file in enumerate(sorted(folder.iterdir())):
        blob = repository / "blobs" / f"{i:040x}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


@pytest.mark.parametrize("model", ["linrnn", "mamba", "rwkv", "rwkv6", "xlstm"])
def test_the_cache_of_the_hub_is_read_by_folder(saved, tmp_path):
    folder, read = saved
    expected = logits(read(folder))
    snapshot = as_cached(folder, tmp_path / "cache")
    same(read, snapshot, expected)
    (tmp_path / "given").symlink_to(snapshot)
    same(read, tmp_path / "given", expected)
    secret = tmp_path / ("f" * 40)
    shutil.copy(folder / "model.safetensors", secret)
    for target in (f"../../blobs/../../../{secret.name}", str(secret), "../../blobs/x"):
        (snapshot / "model.safetensors").unlink()
        (snapshot / "model.safetensors").symlink_to(target)
        with pytest.raises(DataError, match="a symbolic link"):
            read(snapshot)


@pytest.mark.parametrize("model", ["linrnn", "mamba", "rwkv", "rwkv6", "xlstm"])
@pytest.mark.parametrize("in_shards", [False, True])
def test_a_name_on_the_hub_is_read_from_its_cache(saved, tmp_path, monkeypatch, in_shards):
    folder, read = saved
    expected = logits(read(folder))
    if in_shards:
        sharded(folder)
    as_cached(folder, tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    same(read, "some/where", expected)
    with pytest.raises(DataError, match="no/where"):
        read("no/where")


def test_options_of_whoever_calls_still_count(tmp_path):
    model = ours()
    (tmp_path / "sub").mkdir()
    model.save_pretrained(tmp_path / "sub")
    read = LinrnnForCausalLM.from_pretrained
    again, info = read(
        tmp_path, subfolder="sub", dtype=torch.bfloat16, use_cache=False, output_loading_info=True
    )
    assert again.dtype == torch.bfloat16
    assert again.config.use_cache is False
    assert not info["missing_keys"]
    assert again.name_or_path == str(tmp_path)
    config = LinrnnConfig(vocab_size=7, mixer="mingru", d_model=4, n_layers=1, use_cache=False)
    assert read(tmp_path, subfolder="sub", config=config).config.use_cache is False
    without = read(None, config=config, state_dict=model.state_dict())
    assert torch.equal(logits(without), logits(model))
    with pytest.raises(DataError, match="a place outside its folder"):
        read(tmp_path, subfolder="../elsewhere")


@pytest.mark.parametrize("model", ["linrnn", "mamba", "rwkv", "rwkv6", "xlstm"])
def test_sizes_that_do_not_suit_the_weights(saved):
    folder, read = saved
    file = folder / "config.json"
    whole = json.loads(file.read_text())
    names = {"linrnn": ("vocab_size", "d_model", "n_layers")}
    for name in names.get(whole["model_type"], ("vocab_size", "hidden_size", "num_hidden_layers")):
        for value in (0, -1, 1.5, "x", None, True, 10**4, 10**9, 10**400, 1e300, [1], {}):
            file.write_text(json.dumps(whole | {name: value}))
            with pytest.raises(LinrnnError) as caught:
                read(folder)
            assert "\n" not in str(caught.value), (name, value)
