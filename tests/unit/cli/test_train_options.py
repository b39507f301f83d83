"""Options read from the sources are those of the classes, and their errors need no PyTorch."""

import ast
import contextlib
import dataclasses
import inspect
import itertools
import warnings
from importlib import import_module
from typing import get_type_hints

import pytest
import tyro

from linrnn import learn, mixers, recipes, reproductions, tasks
from linrnn._options.declared import declared
from linrnn.backbone.pattern import option_names
from linrnn.cli import main, verbs
from linrnn.cli._line.entries import properties, scales_of
from linrnn.cli._line.mixer_options import mixer_class
from linrnn.cli._line.options import Start, _command, learner_class, short_names
from linrnn.cli._line.train_options import Options, _check, _with_words, recipe_says, train_options
from linrnn.cli._line.values import ANY, choices, values_of
from linrnn.errors import ArgumentError
from linrnn.testing import MIXER_PROPERTIES
from linrnn.train import ModelConfig, OptimConfig, TrainConfig


def names(flags, section):
    start = f"--{section}."
    return {flag[len(start) :].replace("-", "_") for flag in flags if flag.startswith(start)}


def short_of(task):
    cls = tasks.load(task)
    return short_names(cls.short_options, {f.name for f in dataclasses.fields(cls.Options)})


def plain(found):
    """Without the flags that turn an option off."""
    return {one for one in found if one.removeprefix("no_") == one or one[3:] not in found}


@pytest.mark.parametrize("name", mixers.names())
def test_options_of_every_mixer(name):
    found = train_options("digits", name, "bptt")
    assert found.partly == ()
    assert plain(names(found.flags, "mixer")) == set(option_names(name))


@pytest.mark.parametrize("name", tasks.names())
def test_options_of_every_task(name):
    found = train_options(name, "lru", "bptt")
    cls = tasks.load(name)
    fields = {f.name for f in dataclasses.fields(cls.Options)}
    assert plain(names(found.flags, "task")) == fields
    assert {f"--{short}" for short in short_of(name)} <= set(found.flags)
    assert ("--data" in found.flags) == ("data" in fields)
    assert "path" not in fields  # where data lie is said by one name


@pytest.mark.parametrize("name", learn.names())
def test_options_of_every_learner(name):
    flags = train_options("digits", "lru", name).flags
    assert plain(names(flags, "learner")) == {o.name for o in declared(learn.load(name))}


@pytest.mark.parametrize(
    ("section", "cls"), [("model", ModelConfig), ("optim", OptimConfig), ("train", TrainConfig)]
)
def test_options_of_every_run(section, cls):
    flags = train_options("digits", "lru", "bptt").flags
    assert plain(names(flags, section)) == {f.name for f in dataclasses.fields(cls)}


@pytest.mark.parametrize(
    ("task", "mixer", "learner"), [("digits", "2*rg_lru,attention", "tbptt"), ("lm", "lru", "bptt")]
)
def test_flags_are_those_of_the_parser(task, mixer, learner):
    start = Start(recipes.untuned(task), "none", "none")
    command = _command(start, mixer, mixer_class(mixer, {}), learner, learner_class(learner, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(command, prog="linrnn")
    theirs = {flag for action in parser._actions for flag in action.option_strings}
    ours = set(train_options(task, mixer, learner).flags)
    short = {f"--{name}" for name in short_of(task)}
    assert ours - short == theirs - {"-h", "--help"}


def declared_types():
    """Each kind of annotation that an option has: the option, its type, and its default."""
    found = {}
    groups = [("model", ModelConfig), ("optim", OptimConfig), ("train", TrainConfig)]
    cases = [("digits", "lru", "bptt", groups)]
    cases += [(n, "lru", "bptt", [("task", tasks.load(n).Options)]) for n in tasks.names()]
    cases += [("digits", n, "bptt", [("mixer", mixer_class(n, {}))]) for n in mixers.names()]
    cases += [("digits", "lru", n, [("learner", learner_class(n, {}))]) for n in learn.names()]
    for task, mixer, learner, groups in cases:
        flags = train_options(task, mixer, learner).flags
        for section, cls in groups:
            hints = get_type_hints(cls)
            for field in dataclasses.fields(cls):
                stated = flags[f"--{section}.{field.name.replace('_', '-')}"]
                found.setdefault(stated.annotation, (stated, hints[field.name], field.default))
    return found


TYPES = declared_types()


def parses(kind, default, words):
    """Whether tyro takes words as the values of an option."""
    command = dataclasses.make_dataclass(
        "Command", [("option", kind, dataclasses.field(default=default))], kw_only=True
    )
    try:
        tyro.cli(command, args=words, console_outputs=False)
    except SystemExit:
        return False
    return True


@pytest.mark.parametrize("annotation", TYPES)
def test_values_are_refused_in_one_line_where_the_parser_would_refuse_them(annotation):
    """The parser's own error is a box of several lines, after PyTorch was imported."""
    stated, kind, default = TYPES[annotation]
    refused = pytest.raises(ArgumentError, match=r"^train: .* got .*\.$")
    flags = {"--option": stated}
    if annotation == "bool":
        flags["--no-option"] = stated
    options, texts = Options(flags, ()), ["x", "1", "-1", "1.5", "-inf", "None", "True", "auto"]
    texts += choices(stated)[:1]
    lines = [["--option"], ["--option", "1", "2"], ["--option", "1.5", "1.5", "1.5"], ["1"]]
    lines += [line for text in texts for line in (["--option", text], [f"--option={text}"])]
    for line in lines:
        with contextlib.nullcontext() if parses(kind, default, line) else refused:
            _check(line, options, "train", "")


def spellings(word):
    """A word in other cases, and with the other line."""
    other = word.translate(str.maketrans("-_", "_-"))
    return {word, word.upper(), word.title(), word.swapcase(), other, other.upper()}


def test_choices_of_every_verb_go_in_any_case_and_with_either_line():
    found = 0
    for verb in verbs():
        parser = import_module(f"linrnn.cli.{verb}").parser()
        for action in parser._actions:
            for choice in action.choices or ():
                found += 1
                for spelling in spellings(choice):
                    assert parser._get_values(action, [spelling]) == choice, (verb, action.dest)
            for spelling in ("lrr", "LASTT") if action.choices else ():
                with pytest.raises(ArgumentError, match=f"invalid choice: '{spelling}'"):
                    parser.parse_args([action.option_strings[0], spelling])
    assert found > 2


@pytest.mark.parametrize("annotation", [one for one in TYPES if "Literal" in one])
def test_words_of_every_option_go_in_any_case_and_with_either_line(annotation):
    stated = TYPES[annotation][0]
    values = values_of(stated)
    words = {word for kind in values.kinds for word in kind.words}
    assert words >= set(choices(stated))
    for word in words:
        for spelling in spellings(word):
            for line in ([f"--option={spelling}"], ["--option", spelling]):
                found = _with_words(line, Options({"--option": stated}, ()))
                assert found[-1] == line[-1].replace(spelling, word)


def test_every_type_of_an_option_is_understood():
    assert [name for name, (one, _, _) in TYPES.items() if values_of(one) == ANY] == []


@pytest.mark.parametrize("name", recipes.names())
def test_mixer_and_learner_of_a_recipe_are_right_or_unknown(name):
    for scale in recipes.scales(name):
        config = recipes.load(name, scale).config
        assert recipe_says(name, scale, "mixer", "lru") in (None, config.mixer)
        assert recipe_says(name, scale, "learner", "bptt") in (None, config.learner)
    if "cpu" in recipes.scales(name):
        assert recipe_says(name, "cpu", "mixer", "lru") == recipes.load(name, "cpu").config.mixer


WRONG = [
    (["train", "digits", "--mixxer", "lru"], "got --mixxer. Did you mean --mixer?"),
    (["train", "digits", "--lr", "1"], "got --lr. Did you mean --optim.lr?"),
    (["train", "digits", "--mixer.d-stat=1"], "got --mixer.d-stat. Did you mean --mixer.d-state?"),
    (["train", "digits", "--task.shfit", "1"], "got --task.shfit. Did you mean --task.shift?"),
    (["train", "digits", "--mixer", "lur"], "no mixer named 'lur'. Did you mean 'lru'?"),
    (["train", "digits", "--mixer", "lru,RG-LUR"], "no mixer named 'RG-LUR'. Did you mean 'rg_lru"),
    (["train", "digits", "--learner", "bppt"], "no learner named 'bppt'. Did you mean 'bptt'?"),
    (["train", "digits", "--recipe=digts"], "no recipe named 'digts'. Did you mean 'digits'?"),
    (["train", "digits", "--scale", "cup"], "no scale of the recipe digits named 'cup'."),
    (["train", "digit"], "no task named 'digit'. Did you mean 'digits'?"),
    (["train", "digits", "--optim.lr", "fast"], "train: --optim.lr must be a number, got 'fast'."),
    (["train", "digits", "--seed=x"], "train: --seed must be an integer, got 'x'."),
    (["train", "digits", "--train.order", "odd"], "must be one of shuffled, contiguous, got 'odd'"),
    (["train", "forecast", "--task.missing"], "must be one of error, ffill, mask, got nothing"),
    (["train", "forecast", "--task.missing", "no"], "must be one of error, ffill, mask, got 'no'"),
    (["train", "digits", "--optim.betas", "0.9"], "must be 2 values, each a number, got '0.9'."),
    (["train", "digits", "--mixer", "lru", "s5"], "one value, got 'lru s5'. Several names have c"),
    (
        ["train", "digits", "--mixer.gamma=1"],
        "must be given without a value, got '1'. Turn it off",
    ),
    (["train", "digits", "more"], "train: an option must begin with --, got 'more'."),
    (
        ["compare", "digits", "--mixers", "lru", "s5"],
        "must be one value, got 'lru' and 's5'. Several have commas between: --mixers lru,s5.",
    ),
    (  # the word would be taken for one of the option before
        ["compare", "digits", "--task.size", "2", "--mixers", "lru", "s5"],
        "compare: --mixers must be one value, got 'lru' and 's5'.",
    ),
    (["compare", "--seeds=2", "digits", "--seeds", "3", "4"], "--seeds must be given once"),
    (["compare", "digits", "--seeds=2", "3"], "--seeds must be one value, got '2' and '3'."),
    (
        ["sweep", "digits", "--over", "a=1", "b=2"],
        "got 'a=1' and 'b=2'. Several are said one by one: --over a=1 --over b=2.",
    ),
    (["sweep", "digits", "more", "--over", "optim.lr=1"], "must begin with --, got 'more'."),
    (["compare", "digits", "--mixers", "lru,mingruu"], "no mixer named 'mingruu'. Did you mean"),
    (["compare", "digits", "--mixers", "lru", "--optim.lrr", "1"], "Did you mean --optim.lr?"),
    (
        ["check", "LRU", "--property", "Causall"],
        "no property named 'Causall'. Did you mean 'causal'?",
    ),
    (["reproduce", "LRU-Table-1", "--scale", "CPUU"], "--scale named 'CPUU'. Did you mean 'cpu'?"),
    (["check", "lruu"], "no mixer named 'lruu'. Did you mean 'lru'?"),
    (["show", "lur"], "named 'lur'. Did you mean 'lru'?"),
    (["reproduce", "lru-table-44"], "no reproduction named 'lru-table-44'. Did you mean"),
    (["eval", "run", "--lenghts", "3"], "got --lenghts. Did you mean --lengths?"),
    (["eval"], "eval: the following arguments are required: RUN. `linrnn help eval` describes"),
    (["eval", "run", "--steps", "x"], "eval: argument --steps: invalid int value: 'x'. `linrnn"),
    (
        ["compare", "digits", "--mixxers", "lru"],
        "are required: --mixers or --learners. Did you mean --mixers by --mixxers?",
    ),
    (
        ["sweep", "digits", "--ovre=optim.lr=1"],
        "are required: --over. Did you mean --over by --ovre?",
    ),
    # an option of training is no slip of the one that is lacking
    (["sweep", "digits", "--mixer", "lru"], "are required: --over. `linrnn help sweep`"),
    (
        ["train", "table", "--task.columns", "a", "--task.columns", "b"],
        "train: --task.columns must be given once, got --task.columns a and --task.columns b. "
        "Write --task.columns a b.",
    ),
    (["train", "lm", "--data", "a", "--task.Data=b"], "got --data a and --task.data b. Write"),
    (["train", "lm", "--bptt", "3", "--task.length=4"], "got --bptt 3 and --task.length 4. Leave"),
    (["train", "digits", "--on-nan", "skip", "--train.on-nan", "stop"], "must be given once"),
    (["train", "digits", "--model.prenorm", "--model.no-prenorm"], "must be given once"),
    (["compare", "digits", "--mixers", "lru,gru", "--mixer", "lru"], "come without --mixers"),
    (["sweep", "digits", "--over", "seed=1", "--over", "Seed=2"], "name seed once, got it twice"),
    (
        ["sweep", "digits", "--over", "optim.lr=1", "--optim.LR", "3"],
        "sweep: --optim.lr must come without --over optim.lr, got both.",
    ),
    (
        ["sweep", "digits", "--over", "optim.lr=1e-4..1e-2"],
        "sweep: --over optim.lr must be listed values without --random, got the range 0.0001..0.01."
        " Add --random N",
    ),
    (
        ["sweep", "digits", "--over", "optim.lr=1e-2..1e-4", "--random", "3"],
        "--over optim.lr must be a range from a number to a larger one, got 0.01..0.0001.",
    ),
    (
        ["sweep", "digits", "--over", "mixer.d_state=1.5..3", "--random", "3"],
        "sweep: --over mixer.d_state must be a range of integers, got 1.5..3.",
    ),
    (
        ["sweep", "digits", "--over", "model.skip=1..3", "--random", "3"],
        "--over model.skip must be listed values, since it takes no number, got the range 1..3.",
    ),
    (["sweep", "digits", "--over", "mixer=1..3", "--random", "3"], "--over mixer must be listed"),
    (
        ["sweep", "digits", "--over", "optim.lr=1e-4..1e-2,1", "--random", "3"],
        "--over optim.lr must be one range, or values with commas between, got '1e-4..1e-2,1'.",
    ),
    (
        ["sweep", "digits", "--over", "optim.lr=1e-4..", "--random", "3"],
        "--over optim.lr must be a number, got '1e-4..'. A range is two numbers, A..B.",
    ),
    (["sweep", "digits", "--over", "optim.lr=1,fast"], "optim.lr must be a number, got 'fast'."),
    (["sweep", "digits", "--over", "model.skip=1"], "model.skip must be true or false, got 1."),
    (["sweep", "digits", "--over", "learner=bptt,tbpt"], "named 'tbpt'. Did you mean 'tbptt'"),
    (["sweep", "digits", "--over", "mixer=lru,lur"], "no mixer named 'lur'. Did you mean 'lru'"),
    (
        ["sweep", "digits", "--over", "learner=bptt,tbptt", "--learner", "rtrl"],
        "sweep: --learner must come without --over learner, got both.",
    ),
    (
        ["sweep", "digits", "--over", "Learner=tbptt,fptt", "--Learner.Window", "3"],
        "sweep: --learner.window must come without --over learner, got both. Give it to every "
        "learner by --over learner.window=...",
    ),
    (
        ["sweep", "digits", "--over", "mixer=lru,s5", "--mixer.d-state=3"],
        "sweep: --mixer.d-state must come without --over mixer, got both.",
    ),
    (
        ["sweep", "digits", "--over", "learner=bptt,tbptt", "--over", "learner.window=3"],
        "got learner.window. Did you mean learner?",
    ),
    (["sweep", "digits", "--over", "lerner=bptt"], "got lerner. Did you mean learner?"),
    (["sweep", "digits", "--over", "mixer.d_stat=3"], "Did you mean mixer.d-state?"),
    (["sweep", "digits", "--over", "seed=1,2"], "got seed. --seeds N trains every combination"),
    (["sweep", "digits", "--over", "scale=cpu"], "got scale. --scale is one for all runs."),
    (
        ["sweep", "digits", "--over", "on-nan=stop", "--over", "train.on-nan=skip"],
        "sweep: --over must name train.on_nan once, got it twice.",
    ),
    (
        ["sweep", "digits", "--over", "on-nan=stop,skip", "--train.on-nan", "skip"],
        "sweep: --train.on-nan must come without --over train.on_nan, got both.",
    ),
    (
        ["stream", "run", "--learner", "uoro", "--out", "x", "--optim.lr", "1", "--optim.lr", "2"],
        "stream: --optim.lr must be given once, got --optim.lr 1 and --optim.lr 2. Leave one",
    ),
    (["predict", "run"], "are required: FILE. `linrnn help predict` describes"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG)
def test_wrong_names_and_options_say_what_was_meant(capsys, argv, message):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("linrnn: ")
    assert message in error
    assert error.count("\n") == 1


def some_value(flag, options):
    """A flag with as many values as it must have, of those that it takes."""
    values = values_of(options.flags[flag])
    texts = ("1", "0.5", "text", "None", *choices(options.flags[flag]))
    return [flag, *[text for text in texts if values.fits(text)][:1] * values.least]


@pytest.mark.parametrize("task", tasks.names())
def test_every_option_of_every_task_is_refused_twice(task):
    """By whatever two of its names it comes."""
    options = train_options(task, "lru", "bptt")
    for flag in options.flags:
        argv = some_value(options.in_full(flag), options) + some_value(flag, options)
        with pytest.raises(ArgumentError, match="must be given once"):
            _check(argv, options, "train", "linrnn train --help")


COLLECT = {
    ("check", "--law"),
    ("check", "--property"),
    ("generate", "--prompt"),
    ("generate", "--stop"),
    ("sweep", "--over"),
}


@pytest.mark.parametrize("verb", [verb for verb in verbs() if verb != "train"])
def test_every_option_of_every_verb_is_refused_twice_or_collects(verb):
    parser = import_module(f"linrnn.cli.{verb}").parser()
    for flag, action in parser._option_string_actions.items():
        if action.dest in ("help", "quiet", "verbose", "json"):
            continue
        argv, error = [flag, *(["1"] if action.nargs != 0 else [])], ""
        try:
            parser.parse_known_args([*argv, *argv])
        except ArgumentError as raised:  # of some verbs that something else is missing
            error = str(raised)
        assert ("must be given once" in error) != ((verb, flag) in COLLECT), (flag, error)


def test_wrong_names_and_options_need_no_pytorch(python):
    code = f"""
import sys, time, linrnn.cli
codes = [linrnn.cli.main(argv) for argv in {[argv for argv, _ in WRONG]}]
heavy = [name for name in ("torch", "numpy", "tyro", "lightning") if name in sys.modules]
result = [sorted(set(codes)), heavy]
"""
    assert python(code) == [[2], []]


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "digits", "--mixxer", "lru"],
        ["check", "LRU", "--property", "Causall"],
        ["reproduce", "LRU-Table-1", "--scale", "CPUU"],
        ["sweep", "digits", "--over", "learner=bptt,tbpt"],
    ],
)
def test_an_option_error_needs_no_other_package(packages, argv):
    assert packages(f"import linrnn.cli; assert linrnn.cli.main({argv}) == 2") == ["linrnn"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["Digits", "--MIXER", "RG-LRU"], ["digits", "--mixer", "rg_lru"]),
        (["digits", "--mixer", "RGLRU,2*DeltaNet"], ["digits", "--mixer", "rg_lru,2*delta_net"]),
        (["DIGITS", "--Optim.LR=0.5"], ["digits", "--optim.lr=0.5"]),
        (["digits", "--train.batch_size", "7"], ["digits", "--train.batch-size", "7"]),
        (["digits", "--mixer=LRU", "--mixer.R_Min=.5"], ["digits", "--mixer.r-min", ".5"]),
        (["digits", "--recipe", "NONE"], ["digits", "--recipe", "none"]),
        (["digits", "--Train.Order=SHUFFLED"], ["digits", "--train.order=shuffled"]),
        (["digits", "--mixer.d-state", "NONE"], ["digits", "--mixer.d-state", "None"]),
    ],
)
def test_names_go_in_any_case_and_with_either_line(monkeypatch, typed, meant):
    heard = []

    class StartedError(Exception):
        pass

    def run(config, **_):
        heard.append(config)
        raise StartedError

    monkeypatch.setattr("linrnn.train.run", run)
    for argv in (typed, meant):
        with pytest.raises(StartedError):
            main(["TRAIN", *argv])
    assert heard[0] == heard[1]


def test_properties_and_scales_are_those_of_the_classes():
    assert properties() == list(MIXER_PROPERTIES)
    for name in reproductions.names():
        assert scales_of(name) == list(reproductions.load(name).scales), name


def test_options_of_a_class_of_somebody_else_are_left_to_it():
    options = train_options("digits", "pkg.module:Mine", "bptt")
    assert options.has("--mixer.anything")
    assert not options.has("--optim.anything")


def field_words(cls):
    """The docstring below each field of a dataclass, by the name of the field."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(cls)).body)
    for field, words in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(words, ast.Expr):
            yield field.target.id, inspect.cleandoc(words.value.value)


@pytest.mark.parametrize(
    "cls",
    [TrainConfig, OptimConfig, *dict.fromkeys(tasks.load(name).Options for name in tasks.names())],
    ids=lambda cls: cls.__name__,
)
def test_lines_of_an_option_end_with_their_sentences(cls):
    """The help keeps the ends of lines, so a sentence over two of them would break there."""
    broken = {
        name: line
        for name, words in field_words(cls)
        for line in words.splitlines()
        if line and not line.endswith((".", ":"))
    }
    assert not broken
