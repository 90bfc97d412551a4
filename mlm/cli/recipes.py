"""mlm recipes: the papers' recipes that `mlm train --recipe` trains by."""

from mlm.cli import command
from mlm.experiment.paper_recipes import RECIPES


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(
        prog="mlm recipes",
        description="List the papers' recipes that mlm train --recipe=NAME trains by, or the fields of one.",
    )
    parser.add_argument("name", nargs="?", choices=[*RECIPES], metavar="NAME", help=" | ".join(RECIPES))
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    name = make_parser().parse_words(words[1:]).name
    if name:
        print(f"{name}: {RECIPES[name].source}\n")
        for field, value in RECIPES[name].fields.items():
            print(f"{field} = {value!r}")
        return
    width = max(map(len, RECIPES))
    for recipe_name, recipe in RECIPES.items():
        print(f"{recipe_name:{width}}  {recipe.source}")
    print("\nmlm train --recipe=NAME data.path=FILES workdir=runs/a; mlm recipes NAME lists the fields of one")
