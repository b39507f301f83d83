r"""The plain notation of docstrings, as TeX: ``lam * h_{t-1}`` is ``\lambda \odot h_{t - 1}``.

The notation is what a terminal shows. ``*`` is a product of entries, a space any other product,
`` . `` an inner product; ``_`` and ``^`` take one name, number, bracket or brace; ``|a|`` is a
modulus; a name with a bracket behind it is a function. Words that are no symbol are set as text,
so "sum_s p_ts v_s for each head" is one formula.
"""

import re
from dataclasses import dataclass


def _words(text: str) -> set[str]:
    return set(text.split())


GREEK = _words(
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi"
    " psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
SYMBOLS = {name: f"\\{name}" for name in sorted(GREEK)} | {
    "lam": r"\lambda",
    "eps": r"\varepsilon",
    "yhat": r"\hat y",
    "dtheta": r"d\theta",
    "ell": r"\ell",
}
FUNCTIONS = _words(
    "exp log ln sin cos tanh max min sqrt sigmoid softmax softplus silu SiLU relu ReLU gelu elu erf"
    " sign diag norm mean std conj concat conv argmin logaddexp expm1 modReLU Re Im vec roll round"
    " GLU GELU"
)
PLAIN = {"exp", "log", "ln", "sin", "cos", "tanh", "max", "min"}
"""Functions that TeX knows under their names."""
SPOKEN = FUNCTIONS - PLAIN - {"Re", "Im", "sqrt"}
"""Functions that are also words of a sentence."""
WORDS = _words(
    "in of is to as or if by it on at so an no be up we do us its the and for are has one two all"
    " any but may not out own per row set six new old ms"
)
"""Short words that are no symbols."""
AFTER_SYMBOL = _words(
    "is are and or to in as of for where on the has have with at by if else then over so but"
    " turns maps uniform orthogonal follows stays"
)
"""Words that make the "a" before them the name of something."""
RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    "<=": r"\le",
    ">=": r"\ge",
    "~": r"\sim",
    "<-": r"\leftarrow",
    "->": r"\to",
}
OPERATORS = {*RELATIONS, "*", "/", "+", "-", "^", "_"}
"""Characters that make any name beside them a part of a formula."""
CLOSING = {"(": ")", "[": "]", "{": "}"}
TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<code>``[^`]+``|`[^`]+`|[A-Za-z]\w*(?:\.[A-Za-z]\w*)+)
    |(?P<label>"[^"]*")
    |(?P<word>\w*'s\b|[A-Za-z]+(?:-[A-Za-z]+)*-[A-Za-z]{2,}|[A-Za-z]{2,}-[A-Za-z]+|[A-Z]{2,}-\d+
        |[A-Z]+\d\w*|[Ff]loat\d+|float)
    |(?P<number>\d+(?:,\d{3})+|\d+(?:\.\d+)?(?:e-?\d+)?)
    |(?P<name>[A-Za-z]+\d?(?:_[A-Za-z0-9]+)*)
    |(?P<op>\.\.\.|\.\.|<=|>=|<-|->|\+-|[-+*/=<>~^_|'.,;:()\[\]{}!%])
    """,
    re.VERBOSE,
)


class NotUnderstoodError(ValueError):
    """A text is no formula of this notation."""


@dataclass(frozen=True)
class Token:
    """A piece of notation, what it is and whether a space stands before it."""

    kind: str
    text: str
    spaced: bool


def tokens(text: str) -> list[Token]:
    """The pieces of a line, without the spaces between them."""
    found, at, spaced = [], 0, True
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise NotUnderstoodError(f"{text[at]!r} in {text!r}")
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup or "", match[0], spaced))
        spaced = match.lastgroup == "space"
        at = match.end()
    return found


def is_word(found: list[Token], at: int) -> bool:
    """Whether a token is prose rather than part of a formula."""
    token = found[at]
    if token.kind in ("word", "code", "label"):
        return True
    if token.kind != "name":
        return False
    after = found[at + 1] if at + 1 < len(found) else None
    if token.text == "in":
        return not _is_membership(found, at)
    if after is not None and after.text in "(_^[" and not after.spaced:
        return token.text in WORDS
    if token.text in ("a", "A", "I"):
        return after is not None and is_word(found, at + 1) and after.text not in AFTER_SYMBOL
    if token.text.lower() in WORDS:
        return True
    if token.text == "sum":
        return _is_counted(found, at)
    if token.text in SPOKEN:
        return not _is_used(found, at)
    return not _is_symbol(token.text) and not _is_used(found, at)


def _is_used(found: list[Token], at: int) -> bool:
    """Whether an operator or, of a function, its argument stands beside a name."""
    after = found[at + 1] if at + 1 < len(found) else None
    if (after is not None and after.text in OPERATORS) or (at and found[at - 1].text in OPERATORS):
        return True
    if found[at].text not in SPOKEN or after is None or after.kind == "op":
        return False
    return not is_word(found, at + 1)


def _is_counted(found: list[Token], at: int) -> bool:
    """Whether "sum" is a noun or a verb, and no sign in front of what is added up."""
    before = found[at - 1].text if at else "as"
    spoken = before == "a" or (before not in ("as", "of") and is_word(found, at - 1))
    return spoken or at + 1 == len(found) or is_word(found, at + 1)


def _is_symbol(name: str) -> bool:
    if "_" in name or name in SYMBOLS or name in FUNCTIONS or name == "int":
        return True
    letters = name.rstrip("0123456789")
    return len(letters) <= 2 and letters not in WORDS


def _is_membership(found: list[Token], at: int) -> bool:
    """Whether "in" precedes a set: R^n, C^n, an interval or numbers in braces."""
    ahead = [token.text for token in found[at + 1 : at + 3]] + ["", ""]
    if ahead[0] in ("R", "C") and ahead[1] == "^":
        return True
    return ahead[0] in ("(", "[", "{") and (ahead[1] in "-+" or ahead[1][:1].isdigit())


def tex(text: str, *, display: bool = True) -> str:
    """A formula in TeX. With ``display`` quotients are set as fractions.

    Raises:
        NotUnderstoodError: brackets that do not match, or an operator with nothing to work on.
    """
    parser = _Parser(tokens(text), display)
    out = parser.sequence(())
    if parser.at < len(parser.tokens):
        raise NotUnderstoodError(f"{parser.tokens[parser.at].text!r} in {text!r}")
    return out


def escaped(text: str) -> str:
    """A text inside of ``\\text{}``."""
    return re.sub(r"([_%&#$])", r"\\\1", text).replace("^", r"\hat{}").replace("~", r"\sim ")


class _Parser:
    """A recursive descent over the tokens of one formula."""

    def __init__(self, found: list[Token], display: bool) -> None:
        self.tokens, self.at, self.display = found, 0, display
        self.bars = 0  # how many moduli are open inside the innermost bracket
        self.after_set = False  # in the exponent of R or C, where x is "times"

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def take(self) -> Token:
        if self.at == len(self.tokens):
            raise NotUnderstoodError("something is missing at the end of a formula")
        self.at += 1
        return self.tokens[self.at - 1]

    def sequence(self, closing: tuple[str, ...]) -> str:
        """Sums between relations, commas and words, up to a closing bracket."""
        out: list[str] = []
        while self.at < len(self.tokens) and self.peek() not in closing:
            token = self.tokens[self.at]
            if token.text in RELATIONS and not (token.text == "~" and not token.spaced):
                out.append(RELATIONS[self.take().text])
            elif token.text in (",", ";", ":", ".", "!", "%"):
                mark = escaped(self.take().text)
                gap = "" if closing else r"\;"
                out.append(f"{{{mark}}}" if token.text in ":." else mark + gap)
            elif is_word(self.tokens, self.at):
                out.append(self.words())
            elif token.text == "in":
                self.take()
                out.append(r"\in " + self.set_name())
            elif token.text in (")", "]", "}") or (token.text == "|" and self.bars):
                break
            else:
                out.append(self.sum(not out))
        return " ".join(out)

    def words(self) -> str:
        """Consecutive words, with a space on either side."""
        found: list[str] = []
        before = self.at and self.tokens[self.at - 1]
        while self.at < len(self.tokens) and is_word(self.tokens, self.at):
            token = self.take()
            text = escaped(token.text.strip("`"))
            found.append(rf"\texttt{{{text}}}" if token.kind == "code" else rf"\text{{{text}}}")
        left = r"\ " if before and before.text not in ("(", "[", "{", ",") else ""
        right = "" if self.peek() in (")", "]", "}", ",", ".", ";", ":", "") else r"\ "
        return left + r"\ ".join(found) + right

    def set_name(self) -> str:
        if self.peek() not in ("R", "C"):
            return self.sum(True)
        out = rf"\mathbb{{{self.take().text}}}"
        self.after_set = True
        out = self.postfix(out)
        self.after_set = False
        return out

    def sum(self, first: bool) -> str:
        out = []
        while self.peek() in ("+", "-", "+-"):
            out.append({"+-": r"\pm"}.get(self.peek(), self.peek()))
            self.take()
        out.append(self.product())
        while self.peek() in ("+", "-", "+-"):
            out.append({"+-": r"\pm"}.get(self.peek(), self.peek()))
            self.take()
            out.append(self.product())
        return " ".join(out)

    def starts_factor(self) -> bool:
        """Whether the next token begins another factor of a product."""
        if self.at == len(self.tokens):
            return False
        token = self.tokens[self.at]
        if token.text == "|":
            return self.bars == 0
        if token.kind == "op":
            return token.text in ("(", "[", "{", "..", "...")
        return token.text != "in" and not is_word(self.tokens, self.at)

    def product(self) -> str:
        """Factors; what is divided is all of them since the last ``*``."""
        done: list[str] = []
        factors: list[str] = []
        while True:
            if self.peek() == "/" and factors:
                self.take()
                factors = [self.quotient(factors)]
            elif self.peek() == "*" and factors and self.joins():
                self.take()
                done += [*factors, r"\odot"]
                factors = []
            elif self.peek() == "." and factors and self.joins():
                self.take()
                factors.append(r"\cdot")
            elif self.starts_factor() or not factors or factors[-1] == r"\cdot":
                factors.append(self.factor())
            else:
                return " ".join([*done, *factors])

    def joins(self) -> bool:
        """Whether the ``*`` or ``.`` here has a factor on its right: it may end a sentence."""
        if self.peek() == "." and not self.tokens[self.at].spaced:
            return False
        return self.at + 1 < len(self.tokens) and not is_word(self.tokens, self.at + 1)

    def quotient(self, factors: list[str]) -> str:
        below = [self.factor()]
        while below[0].startswith(r"\sum") and self.starts_factor():
            below.append(self.factor())
        above, under = " ".join(factors), " ".join(below)
        if not self.display:
            return f"{above} / {under}"
        return rf"\frac{{{_bare(above)}}}{{{_bare(under)}}}"

    def factor(self) -> str:
        token = self.take()
        if token.text in CLOSING:
            return self.postfix(self.bracket(token.text))
        if token.text == "|":
            self.bars += 1
            inner = self.sequence(("|",))
            if self.take().text != "|":
                raise NotUnderstoodError("a modulus is not closed")
            self.bars -= 1
            return self.postfix(rf"\left|{inner}\right|")
        if token.text in ("..", "..."):
            return r"\dots"
        if token.text in ("-", "+"):  # a sign behind an operator
            return token.text + self.factor()
        if token.kind == "number":
            return self.postfix(_number(token.text))
        if token.kind == "name":
            return self.postfix(self.name(token))
        raise NotUnderstoodError(f"{token.text!r} stands where a factor has to")

    def bracket(self, opening: str) -> str:
        bars, self.bars = self.bars, 0
        inner = self.sequence((CLOSING[opening],))
        if self.take().text != CLOSING[opening]:
            raise NotUnderstoodError(f"{opening!r} is not closed")
        self.bars = bars
        slash = "\\" if opening == "{" else ""
        return rf"\left{slash}{opening}{inner}\right{slash}{CLOSING[opening]}"

    def name(self, token: Token) -> str:
        """A symbol, a function or a large operator."""
        called = self.peek() == "(" and not self.tokens[self.at].spaced
        if token.text == "sqrt" and called:
            self.take()
            return rf"\sqrt{{{_bare(self.bracket('('))}}}"
        if token.text == "x" and self.after_set:
            return r"\times"
        if token.text == "N" and called:
            return r"\mathcal{N}"
        head, *subscripts = token.text.split("_")
        if head in ("sum", "int"):
            return (
                rf"\{head}"
                + (r"\limits" if head == "sum" and self.display else "")
                + _sub(subscripts)
            )
        return symbol(token.text, called)

    def postfix(self, out: str) -> str:
        """Primes, tildes, subscripts, powers, indices and arguments."""
        while self.at < len(self.tokens) and not self.tokens[self.at].spaced:
            mark = self.peek()
            if mark == "'":
                self.take()
                out += "'"
            elif mark == "~":
                self.take()
                out = rf"\tilde{{{out}}}"
            elif mark in ("_", "^"):
                self.take()
                out = scripted(out, mark, self.script(mark, indexed=bool(INDEXED.search(out))))
                if out.endswith(r"\right|^{\top}"):  # no matrix
                    out = out.replace(r"\top", "T")
            elif mark == "(" or (mark == "[" and not out.startswith(r"\left")):
                out += r"\!" + self.bracket(self.take().text)
            else:
                return out
        return out

    def script(self, mark: str, *, indexed: bool = False) -> str:
        """The script after ``_`` or ``^``; ``indexed`` says whether its symbol has a subscript."""
        display, self.display = self.display, False
        token = self.take()
        if token.text in ("{", "("):
            bars, self.bars = self.bars, 0
            inner = self.sequence((CLOSING[token.text],))
            self.take()
            self.bars = bars
        elif token.text == "*":
            inner = "*"
        elif token.text in ("-", "+"):
            inner = token.text + self.script(mark)[2:-1]
        elif token.kind == "number":
            inner = _number(token.text)
        elif token.kind == "name":
            inner = self.index(token.text, mark, indexed)
        else:
            raise NotUnderstoodError(f"{mark}{token.text}")
        self.display = display
        return f"{mark}{{{inner}}}" if "}_{" not in inner or mark == "_" else f"{mark}{inner}"

    def index(self, name: str, mark: str, indexed: bool) -> str:
        """The name behind a ``^`` or ``_``; in x^k_t the last one is a subscript of x.

        In x_t^k_t, where x has its own, it is one of k.
        """
        if name in ("T", "H"):
            return r"\top" if name == "T" else "H"
        head, *rest = name.split("_")
        if mark == "^" and rest and not indexed and all(len(part) == 1 for part in rest):
            first = r"\top" if head == "T" else _part(head)
            return f"{{{first}}}_{{{''.join(rest)}}}"
        return symbol(name, False) if len(name) > 2 or rest else _part(name)


INDEXED = re.compile(r"_\{[^{}]*\}$")


def scripted(symbol: str, mark: str, script: str) -> str:
    """A symbol with one more script: TeX knows but one subscript and one superscript of each."""
    if mark == "_" and INDEXED.search(symbol):
        return f"{symbol[:-1]},{script[2:-1]}}}"
    if mark == "^" and INDEXED.search(symbol) and "'_" in symbol:
        return f"{{{symbol}}}{script}"
    return symbol + script


def symbol(name: str, called: bool) -> str:
    """One name: a letter or a Greek one with subscripts, or upright where it is a word."""
    head, *subscripts = name.split("_")
    if head in FUNCTIONS and not subscripts:
        return f"\\{head}" if head in PLAIN else rf"\operatorname{{{head}}}"
    if subscripts == ["hat"]:
        return rf"\hat{{{SYMBOLS.get(head, head)}}}"
    short = all(len(part) == 1 or part in ("ts", "tr", "nm", "ii") for part in subscripts)
    if head in SYMBOLS or (len(head) <= 2 and head not in WORDS and not (called and len(head) > 1)):
        digits = head[len(head.rstrip("0123456789")) :]
        base = SYMBOLS.get(head, head[: len(head) - len(digits)])
        return base + _sub([*([digits] if digits else []), *subscripts])
    if subscripts and (not short or head in WORDS):
        return rf"\mathtt{{{escaped(name)}}}"
    return rf"\operatorname{{{escaped(head)}}}" + _sub(subscripts)


def _sub(parts: list[str]) -> str:
    return f"_{{{','.join(_part(part) for part in parts)}}}" if parts else ""


def _part(part: str) -> str:
    if part in SYMBOLS:
        return SYMBOLS[part]
    if part.isdigit() or (len(part) <= 2 and part not in ("re", "im", "in", "up")):
        return part
    return rf"\text{{{part}}}"


def _number(text: str) -> str:
    if "e" not in text:
        return text.replace(",", "{,}")
    digits, power = text.split("e")
    return (f"10^{{{power}}}") if digits == "1" else rf"{digits}\cdot10^{{{power}}}"


def _bare(formula: str) -> str:
    """A formula without the one pair of round brackets around it."""
    if not (formula.startswith(r"\left(") and formula.endswith(r"\right)")):
        return formula
    depth = 0
    for mark in re.finditer(r"\\left|\\right", formula):
        depth += 1 if mark[0] == r"\left" else -1
        if depth == 0 and mark.end() < len(formula) - 1:
            return formula
    return formula[len(r"\left(") : -len(r"\right)")]
