"""Numbers written in files and lines, read by one rule."""


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
    """Whether a text may be meant as a number, however written: such a cell is no column's name.

    Example:
        >>> like_number("1_000"), like_number("price")
        (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_plain(text: str | bytes) -> bool:
    underscore = "_" if isinstance(text, str) else b"_"
    return text.isascii() and underscore not in text  # type: ignore[operator]
