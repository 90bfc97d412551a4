"""mlm config: the config fields with type, default and meaning."""

from collections.abc import Mapping

from mlm.base import config, errors, fields
from mlm.base.flag import Flag
from mlm.cli import command


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(
        prog="mlm config", description="List the config fields: name, default, type, meaning."
    )
    command.add_flags(
        parser,
        Flag("search", "", "list only fields with this word in their name or meaning", "WORD"),
        Flag("markdown", False, "print a Markdown table"),
    )
    return parser


def list_fields() -> list[tuple[str, object, str]]:
    """(dotted name, default, help) of each field, in the order of their definition."""
    return [(name, declared.default, declared.facts["help"]) for name, declared in fields.DECLARATIONS.items()]


def print_origins(cfg: config.Config, origins: Mapping[str, str]) -> None:
    """Prints the value of each field, and beside it where the value comes from."""
    lines = {name: f"{name} = {value!r}" for name, value in fields.flatten(cfg).items()}
    width = min(60, max(map(len, lines.values())))
    for name, line in lines.items():
        print(f"{line:<{width}}  {origins[name]}")


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    args = make_parser().parse_words(words[1:])
    rows = [row for row in list_fields() if args.search.lower() in f"{row[0]} {row[2]}".lower()]
    expected = "a word in the name or meaning of a field; mlm config lists all fields"
    errors.require(bool(rows), "--search", args.search, expected)
    if args.markdown:
        print("| field | type | default | meaning |\n|---|---|---|---|")
        for name, value, help_text in rows:
            print(f"| `{name}` | {type(value).__name__} | `{value!r}` | {help_text.replace('|', chr(92) + '|')} |")
        return
    for name, value, help_text in rows:
        print(f"{name} = {value!r} ({type(value).__name__})\n    {help_text}")
