"""mlm serve: serves a page that shows models side by side."""

from mlm.base import text_files
from mlm.base.flag import Flag
from mlm.cli import command, use


def make_parser() -> command.CommandParser:
    """The command's flags."""
    from mlm.cli import entry

    description = entry.describe_command("serve", "mlm serve runs/a runs/b --file=texts.txt")
    parser = command.CommandParser(prog="mlm serve", epilog=use.EPILOG, description=description)
    parser.add_argument("models", metavar="MODEL", nargs="+", help="models to show side by side")
    command.add_flags(
        parser,
        Flag("host", "127.0.0.1", "address to listen on; 0.0.0.0 admits other machines"),
        Flag("port", 8000, "port to listen on; 0: any free port", high=65_535),
        Flag("file", "", "texts to search for similar ones, one a line"),
    )
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    args = make_parser().parse_words(words[1:])
    from mlm.serve import app

    texts = text_files.read_numbered_lines("--file", args.file) if args.file else {}
    app.serve_models(args.models, texts, app.ServeOptions(args.host, args.port))
