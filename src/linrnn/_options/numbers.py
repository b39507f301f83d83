"""Numbers written in files and lines, read by one rule."""

import re

_DRESS = re.compile(r"[\s_,'%$\u20ac\u00a3]")  # signs in numbers that people read
_CUT_OR_HEX = re.compile(r"[+-]?(?:0x[0-9a-f]+|[0-9.]+e[+-]?)", re.IGNORECASE)


def number(text: str | bytes) -> float | None:
    """The number that a text is, or None.

    Digits are those of ASCII, with a sign, a decimal point and an exponent where there are some,
    and blanks around them. Python's ``float`` also takes ``1_000`` for a thousand and the digits of
    every script: a file that holds those was written by something else than it seems.

    The names of NaN and infinity are numbers as well, and one too large for a double is infinite:
    whoever reads data refuses them as not finite, with their place.

    Example:
        >>> number(" -1.5e3 "), number("1_000"), number("")
        (-1500.0, None, None)
    """
    try:
        return float(text) if _is_plain(text) else None
    except ValueError:
        return None


def whole(text: str | bytes) -> int | None:
    """The integer that a text is, or None; see `number`.

    Example:
        >>> whole("+12"), whole("1.0"), whole("1_2")
        (12, None, None)
    """
    try:
        return int(text) if _is_plain(text) else None
    except ValueError:
        return None


def like_number(text: str) -> bool:
    """Whether a text may be meant as a number, however written: no data is passed over for that.

    Example:
        >>> [like_number(text) for text in ("1_000", "1,5", "5 %", "0x1f", "2016-07-01", "price")]
        [True, True, True, True, False, False]
    """
    if _CUT_OR_HEX.fullmatch(text.strip()):
        return True
    try:
        float(_DRESS.sub("", text).replace("\u2212", "-"))
    except ValueError:
        return False
    return True


def is_name(text: str) -> bool:
    """Whether a text may be the name of a column: it holds a letter, and may be no number.

    Example:
        >>> [is_name(text) for text in ("price", "t+1", "1_000", "?", "")]
        [True, True, False, False, False]
    """
    return any(map(str.isalpha, text)) and not like_number(text)


def _is_plain(text: str | bytes) -> bool:
    underscore = "_" if isinstance(text, str) else b"_"
    return text.isascii() and underscore not in text  # type: ignore[operator]


def counted(number: int, noun: str) -> str:
    """A number with its noun, whose plural ends in s.

    Example:
        >>> counted(1, "epoch"), counted(2000, "training sequence")
        ('1 epoch', '2,000 training sequences')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_UNITS = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))


def duration(seconds: float) -> str:
    """A time in the largest unit that it has two of.

    Example:
        >>> [duration(s) for s in (45, 150, 11_320, 4e6)]
        ['45 s', '2.5 min', '3.1 h', '46 days']
    """
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.0f} s"
