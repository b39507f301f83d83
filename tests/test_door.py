"""Files are opened, made and removed in one module; what stands elsewhere is declared, and why.

Every use of a name counts, also inside a function and without a call. One on what the door has
opened needs to be declared as well: whether it was cannot be seen from the source.
"""

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "linrnn"
DOOR = "_files/door.py"

# functions, and methods of paths, that open, make, rename or remove a file by its name
ANYWHERE = {
    *("open", "fdopen", "memmap", "fromfile", "safe_open", "load_file", "save_file"),
    *("read_text", "read_bytes", "write_text", "write_bytes", "touch", "unlink", "rmdir"),
    *(
        "mkdir",
        "makedirs",
        "chmod",
        "truncate",
        "symlink_to",
        "hardlink_to",
        "rmtree",
        "copyfile",
        "copytree",
    ),
    *("copy2", "mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory"),
    *("ZipFile", "is_zipfile", "GzipFile", "LZMAFile", "BZ2File", "SummaryWriter", "savefig"),
    *("loadtxt", "genfromtxt", "savetxt", "savez", "savez_compressed", "tofile", "CDLL"),
    *("from_pretrained", "from_file", "hf_hub_download", "snapshot_download"),
    *("fileinput", "extractall", "load_model_from_file"),
}
# of these modules alone, for others have methods of the same name
OF_MODULES = {
    "os": {"replace", "rename", "remove", "link", "symlink", "mkfifo", "makedirs"},
    "shutil": {"copy", "move"},
    "np": {"load", "save"},
    "numpy": {"load", "save"},
    "torch": {"load", "save"},
    "onnx": {"load", "save"},
    "mmap": {"mmap"},
}

OPENED = "what the door has opened"
CHECKED = "its folder was checked, and a new name is chosen by the library"
SOURCE = "the sources of this package"
SYSTEM = "a file of the system below /proc"
NEW = "a new folder of the system's choice, for processes to leave their results in"
STORE = "a new folder of the system's choice, in which processes find one another"
DECLARED = {
    ("_process/memory.py", "Path(name).read_text"): "a file of the system below /sys",
    ("_process/allocator.py", "ctypes.CDLL"): "the C library of this process",
    ("cli/_line/streams.py", "os.open"): "the null device, in the place of a stream that is closed",
    (
        "cli/_line/streams.py",
        "os.fdopen",
    ): "the null device, in the place of a stream that is closed",
    ("_files/storage.py", "os.fdopen"): OPENED,
    ("_files/storage.py", "safe_open"): OPENED,
    ("reproductions/_runs/bodies.py", "np.load"): OPENED,
    ("reproductions/_runs/grid_worlds.py", "np.load"): OPENED,
    ("reproductions/_runs/grid_worlds.py", "np.savez_compressed"): "into memory",
    ("sound.py", "wave.open"): "bytes in memory",
    ("tasks/_reading/audio.py", "wave.open"): "the bytes of a clip",
    ("tasks/_reading/corpus.py", "np.memmap"): OPENED,
    ("tasks/_reading/corpus.py", "np.fromfile"): OPENED,
    ("tasks/_reading/files.py", "os.fdopen"): OPENED,
    ("tasks/_reading/files.py", "gzip.GzipFile"): OPENED,
    ("tasks/_reading/files.py", "lzma.LZMAFile"): OPENED,
    ("tasks/_reading/files.py", "tarfile.open"): OPENED,
    ("tasks/_reading/files.py", "folder.open"): "the door's own method",
    (
        "tasks/_reading/files.py",
        "urllib.request.build_opener(_Redirect).open",
    ): "an address, https alone",
    ("tasks/_reading/kept.py", "folder.open"): "the door's own method",
    ("tasks/_reading/kept.py", "os.fdopen"): OPENED,
    ("tasks/_reading/kept.py", "file.truncate"): OPENED,
    ("tasks/_reading/kept.py", "np.memmap"): OPENED,
    ("tasks/_reading/image_files.py", "Image.open"): OPENED,
    ("tasks/_reading/numpy.py", "zipfile.is_zipfile"): OPENED,
    ("tasks/_reading/numpy.py", "zipfile.ZipFile"): OPENED,
    ("tasks/_reading/numpy.py", "archive.open"): OPENED,
    ("tasks/_reading/numpy.py", "np.load"): OPENED,
    ("tasks/_reading/pairs.py", "mmap.mmap"): OPENED,
    ("tasks/_reading/rows.py", "np.loadtxt"): "lines in memory",
    ("_files/storage.py", "folder.open"): "the door's own method",
    ("train/metrics.py", "SummaryWriter"): CHECKED,
    ("train/figures.py", "figure.savefig"): "into memory",
    ("interop/_hf_layouts.py", "cls.from_pretrained"): "gets tensors, and no path",
    ("interop/_hf_base.py", "super().from_pretrained"): "gets tensors, and no path",
    ("interop/_hf_pretrained.py", "LinrnnForCausalLM.from_pretrained"): "ours, through the door",
    ("interop/_hf_files.py", "hf_hub_download"): "into the hub's own cache; read through the door",
    ("compute/native.py", "ctypes.CDLL"): "the library built with the package, or the user's own",
    ("recipes/__init__.py", "Path(spec.origin).read_text"): SOURCE,
    ("cli/_line/command.py", "(_VERBS / f'{module.name}.py').read_text"): SOURCE,
    ("_options/catalogue.py", "path.read_text"): SOURCE,
    ("cli/_line/source.py", "path.read_text"): SOURCE,
    ("cli/_line/precomputed.py", "Path(path).read_bytes"): SOURCE,
    ("cli/doctor.py", "info.read_text"): SYSTEM,
    ("lightning/_fit.py", "from tempfile import TemporaryDirectory"): NEW,
    ("lightning/_fit.py", "TemporaryDirectory"): NEW,
    ("serve/store.py", "tempfile.TemporaryDirectory"): "a new folder of the system's choice",
    ("train/processes.py", "from tempfile import TemporaryDirectory"): STORE,
    ("train/processes.py", "TemporaryDirectory"): STORE,
    ("compare/usage.py", "status.read_text"): SYSTEM,
    ("compare/usage.py", "Path('/proc/self/clear_refs').write_text"): SYSTEM,
    ("compare/usage.py", "ctypes.CDLL"): "the C library of this process",
    ("cli/predict.py", "args.out.write_text"): "the user says where to, which may be a pipe",
}


# a plain function of these names is the door's, or what goes through it
OWN = {"read_text", "read_bytes"}


def uses(source):
    """Each use of such a function, as it is written, and its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            of = ANYWHERE | OF_MODULES.get(node.module, set())
            names = [alias.name for alias in node.names if alias.name in of]
            if node.module in {*OF_MODULES, "io", "tempfile", "mmap", "zipfile"}:
                yield from ((f"from {node.module} import {name}", node.lineno) for name in names)
        elif isinstance(node, ast.Name) and node.id in ANYWHERE - OWN:
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if node.attr in ANYWHERE or node.attr in OF_MODULES.get(owner, ()):
                yield ast.unparse(node), node.lineno


@functools.cache
def every_use():
    files = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return [
        (file, used, line)
        for file, path in files.items()
        if file != DOOR
        for used, line in uses(path.read_text(encoding="utf-8"))
    ]


def test_no_file_is_opened_outside_the_door_but_where_it_is_declared():
    found = [f"{f}:{n}: {u}" for f, u, n in every_use() if (f, u) not in DECLARED]
    assert found == []


def test_what_is_declared_is_there():
    assert set(DECLARED) - {(file, used) for file, used, _ in every_use()} == set()


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "with open(path, 'w') as file: pass",
        "Path(path).open('rb')",
        "def f(p):\n    return [p.read_text() for p in p.glob('*')]",
        "folder.joinpath('x').read_bytes()",
        "path.write_bytes(data)",
        "np.load(path)",
        "np.memmap(path)",
        "safe_open(path, framework='pt')",
        "safetensors.torch.load_file(path)",
        "zipfile.ZipFile(path)",
        "tarfile.open(path)",
        "os.replace(a, b)",
        "path.unlink()",
        "shutil.rmtree(path)",
        "tempfile.mkstemp()",
        "os.open(path, 0)",
        "AutoModel.from_pretrained(path)",
        "torch.load(path)",
        "files = map(open, paths)",
        "from os import replace",
    ],
)
def test_a_file_opened_elsewhere_is_found_however_it_is_written(source):
    assert len(list(uses(source))) == 1


@pytest.mark.parametrize(
    "source", ["text.replace('a', 'b')", "read_bytes(path, inside=None)", "json.loads(text)"]
)
def test_what_opens_no_file_passes(source):
    assert list(uses(source)) == []
