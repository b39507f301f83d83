"""Without the extra `train` a verb that needs it says how to install it."""

BLOCKED = """
import sys

MISSING = ("lightning", "pytorch_lightning", "tyro", "rich", "tensorboard", "matplotlib", "sklearn")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import contextlib, io, linrnn.cli
result = []
for argv in COMMANDS:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        code = linrnn.cli.main(argv)
    result.append([code, err.getvalue()])
"""
INSTALL = (
    "which is not installed. Install it, in a clone: pip install -c constraints.txt '.[train]'; "
    "once published: pip install 'linrnn[train]'\n"
)


def test_verbs_that_train_answer_with_the_line_that_installs(python):
    commands = [
        ["train"],
        ["train", "digits"],
        ["train", "--help"],
        ["train", "digits", "--help"],
        ["train", "--resume", "run"],
        ["compare", "digits", "--mixers", "lru,gru"],
        ["reproduce", "lru-table-1"],
    ]
    found = python(f"COMMANDS = {commands}\n{BLOCKED}")
    for argv, (code, error) in zip(commands, found, strict=True):
        assert code == 1, argv
        assert error.endswith(INSTALL), argv
        assert "Traceback" not in error
        assert "'lightning'" in error


def test_verbs_that_read_a_run_do_so_too(python, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    verbs = [["eval"], ["predict", "rows.csv"], ["stream"], ["distill"], ["generate"]]
    commands = [[verb, str(run), *more] for verb, *more in verbs]
    # what imports nothing of it may get further; a list must not need PyTorch's neighbours at all
    commands += [["list", "mixers"], ["show", "lru"], ["train", "digits", "--mixxer", "lru"]]
    found = python(f"COMMANDS = {commands}\n{BLOCKED}")
    assert [code for code, _ in found] == [1, 1, 1, 1, 1, 0, 0, 2]
    for _, error in found[:5]:
        assert error.startswith("linrnn: ")
        assert error.count("\n") == 1
