"""mlm completion: prints a script of tab completion for a shell, made by shtab from the parsers of all commands."""

import argparse
import importlib
import inspect

from mlm.base import extras, fields
from mlm.cli import command

SET_FIELD = "_mlm_set_field"  # a function of the shell that completes NAME=, and a file of an evaluation's runs
FUNCTIONS = {
    "bash": """%s() { compgen -f -- "$1"; compgen -W "%s" -- "$1"; }""",
    "zsh": """%s() { _files; compadd -S '' -- %s; }""",
}
NO_SPACE = """
_mlm_complete() { _shtab_mlm "$@"; [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace; }
complete -o bashdefault -F _mlm_complete mlm"""


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(
        prog="mlm completion", description="Print a script of tab completion.\n\n    source <(mlm completion bash)"
    )
    parser.add_argument("shell", choices=("bash", "zsh"), help="bash | zsh")
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    args = make_parser().parse_words(words[1:])
    shtab = extras.import_extra("shtab", "completion", "mlm completion")
    from mlm.cli.entry import COMMANDS

    root = argparse.ArgumentParser(prog="mlm")
    subparsers = root.add_subparsers()
    for name, (module_name, purpose) in COMMANDS.items():
        module = importlib.import_module(f"mlm.cli.{module_name}")
        if name == "sweep":
            verbs = subparsers.add_parser(name, help=purpose).add_subparsers()
            for verb, row in module.VERBS.items():
                add_parser(verbs, verb, row.purpose, module.make_parser(verb), shtab.FILE)
        else:
            parser = module.make_parser(*[name] * len(inspect.signature(module.make_parser).parameters))
            add_parser(subparsers, name, purpose, parser, shtab.FILE)
    names = " ".join(f"{field}=" for field in fields.DEFAULT)
    preamble = {shell: function % (SET_FIELD, names) for shell, function in FUNCTIONS.items()}
    print(shtab.complete(root, args.shell, preamble=preamble) + (NO_SPACE if args.shell == "bash" else ""))


def add_parser(subparsers, name: str, purpose: str, parser: command.CommandParser, file) -> None:
    """Adds a command's parser to those that are completed, with NAME= and --config.NAME where it has fields.

    file: shtab's completion of file names.
    """
    for action in parser._actions:
        if action.dest == "verb":
            action.choices = action.choices or str(action.help).split(" | ")
        elif not action.choices and action.nargs != 0:
            setattr(action, "complete", file)  # noqa: B010 - argparse does not know what shtab reads
    if parser.has_fields:
        parser.add_argument("fields", nargs="*", help="config fields")
        for action in parser._get_positional_actions():
            if action.nargs is not None:  # a field may stand in its place
                setattr(action, "complete", dict.fromkeys(FUNCTIONS, SET_FIELD))  # noqa: B010 - as above
        for field in fields.DEFAULT:
            parser.add_argument(f"--config.{field}")
    subparsers.add_parser(name, help=purpose, parents=[parser], add_help=False)
