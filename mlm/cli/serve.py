"""mlm serve: serves a page that shows models side by side."""

from mlm.base import text_files
from mlm.cli import command, use


def make_parser() -> command.CommandParser:
    """The command's flags."""
    from mlm.cli import entry

    description = entry.describe_command("serve", "mlm serve runs/a runs/b --file=texts.txt")
    parser = command.CommandParser(prog="mlm serve", epilog=use.EPILOG, description=description)
    parser.add_argument("models", metavar="MODEL", nargs="+", help="models to show side by side")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 admits other machines")
    parser.add_argument(
        "--port", type=command.Number(int, 0, 65_535), default=8000, help="port to listen on; 0: any free port"
    )
    parser.add_argument("--file", default="", help="texts to search for similar ones, one a line")
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    args = make_parser().parse_words(words[1:])
    from mlm.serve import app

    texts = text_files.read_numbered_lines("--file", args.file) if args.file else {}
    app.serve_models(args.models, texts, app.ServeOptions(args.host, args.port))
