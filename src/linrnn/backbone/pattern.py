"""Which mixer each layer of a stack has: one for all, or a pattern repeated along the depth."""

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from linrnn import mixers
from linrnn._options.catalogue import registered, stems, todays_name
from linrnn._options.declared import PLACE, SET_BY_THE_STACK
from linrnn._options.import_path import check_trusted, import_class, import_path, is_import_path
from linrnn.backbone.signals import receives
from linrnn.errors import ArgumentError, UnknownNameError, check_kind, show
from linrnn.mixers import Bidirectional, Mixer
from linrnn.nn.parameters import working_dtype

OneMixer: TypeAlias = str | type[Mixer] | Mixer
"""A name of `linrnn.mixers.names`, an import path, a class or an instance."""

MixerLike: TypeAlias = OneMixer | Sequence[OneMixer]
"""One mixer for all layers, or several that are repeated along the depth; of texts they may be one
text with commas between, in which ``3*lru`` is ``lru,lru,lru``."""

MOST_LAYERS = 10_000
"""Limit on the layers of a model, or that a text may name."""

_STORABLE = (bool, int, float, str, type(None))


def pattern(mixer: object) -> tuple[OneMixer, ...]:
    """The mixers of a pattern, in the order of the layers; none is imported.

    Raises:
        ArgumentError: no mixer, or something that is none.

    Example:
        >>> pattern("lru,lru,attention")
        ('lru', 'lru', 'attention')
        >>> pattern("2*lru,attention")
        ('lru', 'lru', 'attention')
    """
    if isinstance(mixer, str):
        mixer = _todays(mixer)
        parts = [part.strip() for part in mixer.split(",")]
        if "" in parts and parts != [""]:
            raise ArgumentError(
                f"mixer: a pattern must have a mixer between its commas, got {show(mixer)}."
            )
        return _expanded(mixer, parts)
    if isinstance(mixer, tuple | list) and mixer:
        return tuple(part for one in mixer for part in pattern(one))
    if isinstance(mixer, Mixer | type):
        return (mixer,)
    raise ArgumentError(
        "mixer: it must be a name, an import path, a class, an instance, or several of these, got "
        f"{show(mixer)}."
    )


def _expanded(mixer: str, parts: list[str]) -> tuple[str, ...]:
    """The mixers of a text, ``parts`` of which may be a number of layers with the same one."""
    names: list[str] = []
    for part in parts:
        match = re.fullmatch(r"([0-9]+)\s*\*\s*([^*\s]+)", part)
        count = 1 if match is None else int(match[1][:9])
        if not 0 < count <= MOST_LAYERS - len(names):
            raise ArgumentError(
                f"mixer: a pattern must have 1 to {MOST_LAYERS:,} layers of each mixer and in all, "
                f"got {show(mixer)}."
            )
        names += [part if match is None else match[2]] * count
    return tuple(names)


def _todays(mixer: str) -> str:
    """A text with today's names of mixers instead of former ones."""
    return re.sub(r"[^,*\s]+", lambda name: todays_name(mixers.__name__, name[0]), mixer)


def _by_todays_names(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options of which tables are of mixers, under the names that these have today."""
    check_kind("mixer", "mixer_options", {} if options is None else options, Mapping)
    return {
        todays_name(mixers.__name__, key) if isinstance(value, Mapping) else key: value
        for key, value in dict(options or {}).items()
    }


def label(mixer: OneMixer) -> str:
    """The key of a mixer's options: its name, or that of its class.

    Example:
        >>> label("lru"), label("pkg.module:Mine"), label(mixers.LRU)
        ('lru', 'Mine', 'lru')
    """
    if isinstance(mixer, str):
        return _todays(mixer).rpartition(":")[2].rpartition(".")[2]
    cls = mixers.load(mixer)
    return _name(cls) or cls.__name__


def labels(mixer: object) -> list[str]:
    """The labels of a pattern, each once, in the order of the layers.

    Raises:
        ArgumentError: two different mixers have one label.
    """
    mixer_of: dict[str, OneMixer] = {}
    for part in pattern(mixer):
        first = mixer_of.setdefault(label(part), part)
        if first != part and mixers.load(first) is not mixers.load(part):
            raise ArgumentError(
                f"mixer: the mixers of a pattern must have names of their own, got {label(part)!r} "
                "twice. Rename a class."
            )
    return list(mixer_of)


def options_of(mixer: object, options: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The options of each mixer of a pattern, by label.

    An option goes to every mixer that has it; those of a table named like a label go to that one
    alone, and come before the others.

    Args:
        mixer: the pattern.
        options: both kinds.

    Raises:
        UnknownNameError: an option that none of several mixers has.

    Example:
        >>> options_of("lru,attention", {"form": "conv", "attention": {"n_heads": 2}})
        {'lru': {'form': 'conv'}, 'attention': {'n_heads': 2}}
    """
    parts, options = pattern(mixer), _by_todays_names(options)
    by_label: dict[str, dict[str, Any]] = {name: {} for name in labels(mixer)}
    of_one = {k: options.pop(k) for k in by_label if isinstance(options.get(k), Mapping)}
    if len(by_label) == 1:
        return {name: {**options, **of_one.get(name, {})} for name in by_label}
    names_of = {label(p): set(option_names(p)) for p in parts if not isinstance(p, Mixer)}
    for option, value in options.items():
        takers = [name for name, its in names_of.items() if option in its]
        if not takers:
            every = set(by_label).union(*names_of.values())
            raise UnknownNameError(f"option of the mixers {', '.join(by_label)}", option, every)
        for name in takers:
            by_label[name][option] = value
    return {name: {**its, **of_one.get(name, {})} for name, its in by_label.items()}


def option_names(mixer: OneMixer) -> list[str]:
    """Arguments of a mixer's constructor that a stack does not set itself."""
    parameters = inspect.signature(mixers.load(mixer)).parameters
    return [name for name in parameters if name not in SET_BY_THE_STACK]


@dataclass(frozen=True)
class Choice:
    """The mixer of one layer, and the layer's place: the one way in which a stack is built."""

    mixer: OneMixer
    options: Mapping[str, Any]
    place: Mapping[str, Any]
    """``layer``, counted from 0, and ``n_layers``, for a mixer that depends on them, and what it
    ``receives`` from the stack, for one that can."""
    alone: bool
    """No other layer has it: an instance is taken as it is, and not copied."""

    def takes(self, option: str) -> bool:
        """Whether its constructor has an argument of that name."""
        return option in inspect.signature(mixers.load(self.mixer)).parameters

    def build(self, d_model: int, *, both_ways: bool = False, **factory: Any) -> Mixer:
        """The mixer of the layer.

        Args:
            d_model: channels in and out.
            both_ways: a second one reads backward.
            **factory: ``device`` and ``dtype``.

        Raises:
            UnknownNameError, ArgumentError: see `linrnn.mixers.build`.
        """
        place = {name: value for name, value in self.place.items() if self.takes(name)}
        if isinstance(self.mixer, Mixer):
            mixers.check_instance(self.mixer, d_model, self.options, **factory)
            mixer = self.mixer if self.alone else _another(self.mixer, place)
            return Bidirectional(mixer) if both_ways else mixer
        build = Bidirectional.build if both_ways else mixers.build
        return build(self.mixer, d_model, {**self.options, **place}, **factory)


def _another(mixer: Mixer, place: Mapping[str, Any]) -> Mixer:
    """One of the same kind with parameters drawn anew: for its place, if it depends on that."""
    if not place:
        return mixers.redrawn("mixer: an instance for several layers", mixer)
    options = {**_constructed(mixer), **place}
    like = {"device": next(mixer.parameters()).device, "dtype": working_dtype(mixer)}
    copy = type(mixer)(d_model=mixer.d_model, **options, **like)
    return copy.train(mixer.training)


def choose(
    where: str,
    mixer: MixerLike,
    options: Mapping[str, Any] | None,
    n_layers: int,
    runs: Sequence[int] | None = None,
    ahead: Collection[str] = (),
    *,
    count_name: str = "n_layers",
) -> list[Choice]:
    """The mixer of each layer, from the first.

    Args:
        where: who asks, for the message.
        mixer: one, or a pattern, which begins anew where it ends.
        options: of the mixers: see `options_of`.
        n_layers: layers there are.
        runs: of each layer the number of its run, between which no signal goes; None: one run.
        ahead: signals that the stack makes before its first layer.
        count_name: of the argument that says how many layers there are, for the message.

    Raises:
        ArgumentError: more mixers than layers; what `pattern` refuses.
        UnknownNameError: an unknown mixer, or an option that none has.
    """
    parts, by_label = pattern(mixer), options_of(mixer, options)
    if len(parts) > n_layers:
        raise ArgumentError(
            f"{where}: {count_name} must be at least {len(parts)}, the length of the pattern of "
            f"mixers, got {n_layers}."
        )
    placed = [parts[layer % len(parts)] for layer in range(n_layers)]
    count = {id(p): sum(p is one for one in placed) for p in parts}
    received = receives([mixers.load(p) for p in placed], runs, ahead)
    places = [
        {"layer": layer, "n_layers": n_layers, "receives": names}
        for layer, names in enumerate(received)
    ]
    return [
        Choice(p, by_label[label(p)], place, count[id(p)] == 1)
        for p, place in zip(placed, places, strict=True)
    ]


def stored(
    mixer: object, options: Mapping[str, Any] | None, d_model: int
) -> tuple[str, dict[str, Any]]:
    """A mixer, or a pattern, and its options as a file holds them.

    Args:
        mixer: what `pattern` takes; a text is stored as it is, but for former names. For an
            instance its class and options are stored, not its parameters.
        options: as `options_of` takes them.
        d_model: width that an instance must have.

    Raises:
        ArgumentError: a class that no import path leads to; an instance of another width, or one
            that cannot be constructed again from plain options.

    Example:
        >>> stored((mixers.LRU, "attention"), {"attention": {"n_heads": 2}}, 8)
        ('lru,attention', {'attention': {'n_heads': 2}})
    """
    if isinstance(mixer, str):
        return _todays(mixer), _by_todays_names(options)
    parts, table = pattern(mixer), _by_todays_names(options)
    instances: dict[str, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, Mixer):
            mixers.check_instance(part, d_model, table if len(labels(parts)) == 1 else {})
            first = instances.setdefault(label(part), _constructed(part))
            if first != _constructed(part):
                raise ArgumentError(
                    f"mixer: instances of {type(part).__name__} in one pattern must have the same "
                    "options to be stored, got different ones."
                )
    if instances:
        table = instances[label(parts[0])] if len(labels(parts)) == 1 else {**table, **instances}
    return ",".join(p if isinstance(p, str) else _path(mixers.load(p)) for p in parts), table


def check_stored(where: str, mixer: object) -> None:
    """Raise unless a file may name the mixers that it names.

    Raises:
        UntrustedError: see `linrnn._options.import_path.check_trusted`.
        ArgumentError: it names none.
    """
    for part in pattern(mixer):
        if is_import_path(part):
            check_trusted(where, str(part))


def import_all(mixer: object) -> None:
    """Import the modules that a pattern names by import paths, as its user asks for.

    Raises:
        ArgumentError: one cannot be imported.
    """
    for part in pattern(mixer):
        if is_import_path(part):
            import_class("mixer", str(part), Mixer)


def _name(cls: type[Mixer]) -> str | None:
    """The name that a class has in the catalogue, if it has one."""
    package, _, stem = cls.__module__.rpartition(".")
    if package == mixers.__name__ and stem in stems(package):
        return stem
    value = f"{cls.__module__}:{cls.__qualname__}"
    plugins = registered(mixers.__name__).items()
    return next((name for name, entries in plugins if [p.value for p in entries] == [value]), None)


def _path(cls: type[Mixer]) -> str:
    """The name of a class in the catalogue, or its import path."""
    return _name(cls) or import_path(cls)


def _constructed(mixer: Mixer) -> dict[str, Any]:
    """The options that construct a mixer of the same kind and sizes."""
    name, options = type(mixer).__name__, {}
    for option in option_names(mixer):
        value = getattr(mixer, option, mixer)
        several = value if isinstance(value, tuple | list) else (value,)
        if not all(isinstance(v, _STORABLE) for v in several):
            raise ArgumentError(
                f"mixer {name}: to be made anew, an instance must keep its argument {option!r} as "
                f"a number, text or flag of that name, got "
                f"{'none' if value is mixer else type(value).__name__}. Give its class, with "
                "mixer_options."
            )
        options[option] = list(value) if isinstance(value, tuple) else value
    takes = inspect.signature(type(mixer)).parameters
    place = {key: getattr(mixer, key) for key in PLACE if key in takes}
    rebuilt = type(mixer)(d_model=mixer.d_model, device="meta", **options, **place)
    if _sizes(rebuilt) != _sizes(mixer):
        raise ArgumentError(
            f"mixer {name}: to be made anew, an instance must be what its class makes of its "
            "options, got other parameters. Write a class of your own."
        )
    return options


def _sizes(mixer: Mixer) -> dict[str, Any]:
    return {name: x.shape for name, x in mixer.state_dict().items()}
