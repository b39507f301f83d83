"""Print the script that completes verbs, options and names in bash, zsh or fish."""

import sys
from collections.abc import Sequence

from linrnn.cli._line.parser import Parser
from linrnn.errors import UnknownNameError

EPILOG = """\
The script asks linrnn itself, so it completes every installed name, and the options of a task and
its mixer. Put a line into the file that your shell reads when it starts:

  bash  ~/.bashrc                   source <(linrnn completion bash)
  zsh   ~/.zshrc, after compinit    source <(linrnn completion zsh)
  fish  ~/.config/fish/config.fish  linrnn completion fish | source"""


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("completion", __doc__, answers=False, epilog=EPILOG)
    parser.add("shell", metavar="SHELL", help="bash, zsh or fish", kind="shell")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a script, or, for such a script, the words that may come next."""
    if argv[:1] == ["--words"]:
        from linrnn.cli._verbs.complete import complete

        sys.stdout.writelines(f"{word}\n" for word in complete([*argv[1:]]))
        return 0
    shell = parser().parse_args(argv).shell.lower()
    if shell not in SCRIPTS:
        raise UnknownNameError("shell", shell, SCRIPTS)
    sys.stdout.write(SCRIPTS[shell])
    return 0


_BASH = """\
_linrnn() {
    local found
    mapfile -t found < <(linrnn completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    case "${found[0]}" in
        :files) compopt -o default; COMPREPLY=() ;;
        :folders) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$2") ;;
        *) COMPREPLY=("${found[@]}") ;;
    esac
}
complete -F _linrnn linrnn
"""
_ZSH = """\
#compdef linrnn
_linrnn() {
    local -a found
    found=("${(@f)$(linrnn completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    case "${found[1]}" in
        :files) _files ;;
        :folders) _files -/ ;;
        ?*) compadd -U -Q -- "${found[@]}" ;;
    esac
}
compdef _linrnn linrnn
"""
_FISH = """\
function __linrnn_words
    set -l found (linrnn completion --words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    switch "$found[1]"
        case :files
            __fish_complete_path (commandline -ct)
        case :folders
            __fish_complete_directories (commandline -ct)
        case '*'
            printf '%s\\n' $found
    end
end
complete -c linrnn -f -a '(__linrnn_words)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""The script of each shell."""
