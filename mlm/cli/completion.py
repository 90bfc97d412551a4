"""mlm completion: prints a script of tab completion for a shell, made by shtab from the parsers of all commands."""

import argparse
import importlib
import inspect

from mlm.base import extras, fields
from mlm.cli import command

CONFIG_COMMANDS = ("train", "finetune", "evaluate", "sweep", "floor")  # complete --config.NAME, too


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
        parser = module.make_parser(*[name] * len(inspect.signature(module.make_parser).parameters))
        for action in parser._actions:
            if action.dest == "verb":
                action.choices = list(module.VERBS)
            elif not action.choices and action.nargs != 0:
                action.complete = shtab.FILE
        for field in fields.DEFAULT if name in CONFIG_COMMANDS else ():
            parser.add_argument(f"--config.{field}")
        subparsers.add_parser(name, help=purpose, parents=[parser], add_help=False)
    print(shtab.complete(root, args.shell))
