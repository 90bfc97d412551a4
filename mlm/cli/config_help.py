"""mlm config and mlm recipes: the config fields, and the papers' recipes that mlm train --recipe trains by."""

from collections.abc import Mapping

from mlm.base import config, errors, fields
from mlm.base.flag import Flag
from mlm.cli import command
from mlm.experiment.recipes import RECIPES


def make_parser(name: str) -> command.CommandParser:
    """The flags of a command: config or recipes."""
    if name == "recipes":
        parser = command.CommandParser(
            prog="mlm recipes",
            description="List the papers' recipes that mlm train --recipe=NAME trains by, or the fields of one.",
        )
        parser.add_argument("name", nargs="?", choices=[*RECIPES], metavar="NAME", help=" | ".join(RECIPES))
        return parser
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
    args = make_parser(words[0]).parse_words(words[1:])
    if words[0] == "recipes":
        print_recipes(args.name)
        return
    rows = [row for row in list_fields() if args.search.lower() in f"{row[0]} {row[2]}".lower()]
    expected = "a word in the name or meaning of a field; mlm config lists all fields"
    errors.require(bool(rows), "--search", args.search, expected)
    if args.markdown:
        print("| field | type | default | meaning |\n|---|---|---|---|")
        for name, value, help_text in rows:
            print(f"| `{name}` | {type(value).__name__} | `{value!r}` | {help_text.replace('|', chr(92) + '|')} |")
        return
    for name, value, help_text in rows:
        print(command.wrap_text(f"{name} = {value!r} ({type(value).__name__})\n    {help_text}"))


def print_recipes(name: str | None) -> None:
    """Prints the fields of a recipe; None: the names and sources of all."""
    if name:
        print(f"{name}: {RECIPES[name].source}\n")
        for field, value in RECIPES[name].fields.items():
            print(f"{field} = {value!r}")
        return
    width = max(map(len, RECIPES))
    for recipe_name, recipe in RECIPES.items():
        print(f"{recipe_name:{width}}  {recipe.source}")
    print("\nmlm train --recipe=NAME data.path=FILES workdir=runs/a; mlm recipes NAME lists the fields of one")
