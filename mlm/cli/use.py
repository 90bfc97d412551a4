"""The commands that use a trained model, each a row of COMMANDS; and serve, a page that shows models side by side."""

import argparse
import csv
import dataclasses
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlm.base import errors, extras, files, text_files
from mlm.base.flag import Flag
from mlm.cli import command
from mlm.data.text import records, remote_files

FORMATS = {
    **dict.fromkeys(("probability", "cosine", "cloze", "surprisal", "bits", "bits_per_byte"), ".3f"),
    **dict.fromkeys(("nats", "log_prob"), ".2f"),
    "flesch": ".1f",
    "texts": ",d",
}
QUOTINGS = (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)  # the second of rows with a carriage return, which ends a row, too
FIRST_ROWS = 1000  # those that say the columns of a table to write
RECORDS = "the records, .csv or .jsonl"
WIDEST = 80  # letters of a text that a table shows
WHOLE = ("written", "note", "milestones", "pushed")  # columns that it shows whole
MODEL_HELP = (
    "a run's directory, or a Hugging Face folder (BERT, RoBERTa or XLM-R, with or without a label head, or GPT-2)"
)
TEXTS_HELP = "texts; without any, the lines of --file or of standard input"
JSON_HELP = "print lines of JSON, in which masks, ranks, texts and lines count from 1"
TOP_K = Flag("top_k", 5, "how many answers (5)", low=1)
STATES = (
    Flag("layer", -1, "0: the embeddings; -1: the last layer", low=-command.MAX_COUNT),
    Flag(
        "pooling",
        "",
        "mean over tokens, or the first or last token's state; empty: as embeddings were trained, else mean",
        choices=("mean", "first", "last"),
    ),
)
WORD = Flag("word", "", "a word of the text, or its number from 1: finds the most similar words of --file in context")
SCORE = (
    Flag("by", "text", "a text's log-likelihood; a word's or token's surprisal", choices=("text", "word", "token")),
    Flag(
        "metric",
        "pll",
        "mask each token alone, or with the rest of its word, or read a hybrid model from left to right",
        choices=("pll", "pll_word_l2r", "causal"),
    ),
    Flag(
        "overlap", -1, "left to right: tokens that a window of a long text repeats of the one before; -1: half", low=-1
    ),
)
BEAMS = (
    Flag("num_beams", 1, "beams; 1: no beam search", low=1),
    Flag(
        "length_penalty",
        "mean",
        "with beams: divide a text's log-probability by nothing, its length, or ((5 + length) / 6)^0.6",
        choices=("none", "mean", "wu"),
    ),
    Flag("num_return_sequences", 1, "texts for each", low=1),
)
SERVE = (
    Flag("host", "127.0.0.1", "address to listen on; 0.0.0.0 admits other machines"),
    Flag("port", 8000, "port to listen on; 0: any free port", high=65_535),
    Flag("file", "", "texts to search for similar ones, one a line"),
)
EXPORT = (
    Flag("sentence_transformers", False, "also write what SentenceTransformer(FOLDER) reads, to give what embed does"),
    Flag("milestones", False, "also write each of the run's milestones, as FOLDER/stepN"),
    Flag("push", "", "also upload to this repository of huggingface.co, milestones as its branches", "ORG/NAME"),
)
UNMASK_ORDERS = ("left", "confidence")
SAMPLING = (
    Flag("temperature", 0.0, "sample from logits over this; 0: the likeliest token"),
    Flag("top_k", 0, "sample from the k likeliest tokens; 0: from all"),
    Flag("top_p", 1.0, "sample from the likeliest tokens with this probability together", high=1.0),
    Flag("max_length", 0, "tokens in all, at most; 0: as many as a row holds"),
    Flag("seed", 0, "of the sampling", high=2**32 - 1),
    Flag("unmask_order", "", "in places of [MASK]s: left to right, or the surest first", choices=UNMASK_ORDERS),
    Flag("tokens_per_step", 1, "in places of [MASK]s: tokens filled in a pass", low=1),
)


def check_output(out: str, *endings: str) -> Path:
    """--out, which has one of the endings, where a file can be written."""
    path = Path(out)
    names = " or ".join(f"FILE{ending}" for ending in endings)
    errors.require(out.endswith(endings), "--out", out, f"the name of a file to write, {names}")
    errors.require(path.parent.is_dir() and not path.is_dir(), "--out", out, "a file in a folder that is there")
    files.check_folder("--out", str(path.parent))
    return path


def write_records(path: Path, rows: Iterable[dict]) -> int:
    """Writes a table with a line of names (.csv) or lines of JSON as the rows come; returns how many.

    Nothing is written if a row raises. Raises ConfigError where a late row has a column that the first ones lack.
    """
    rows, count = iter(rows), 0
    # Half a character is escaped, as JSON does it.
    with (
        files.atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        first = list(itertools.islice(rows, FIRST_ROWS))
        names = list_names(first)
        writer, quoter = (csv.DictWriter(file, names, lineterminator="\n", quoting=x) for x in QUOTINGS)
        if path.suffix == ".csv":
            writer.writeheader()
        for count, row in enumerate(itertools.chain(first, rows), 1):
            if path.suffix == ".csv":
                new = ", ".join(row.keys() - {*names})
                errors.require(not new, f"--out: {path}, row {count}", new, "the columns of the rows before; or .jsonl")
                has_return = any("\r" in cell for cell in row.values() if isinstance(cell, str))
                (quoter if has_return else writer).writerow(row)
            else:
                file.write(f"{format_json(row)}\n")
    return count


def list_names(rows: Sequence[dict]) -> list[str]:
    """The names of all records, in the order in which they come."""
    return list(dict.fromkeys(name for record in rows for name in record))


def format_json(record: dict) -> str:
    """A record as a line of JSON; what JSON has no form for is text, NaN is null."""
    valid = {name: None if isinstance(x, float) and math.isnan(x) else x for name, x in record.items()}
    return json.dumps(valid, ensure_ascii=False, default=str)


def print_table(rows: Sequence[dict], omitted: Container[str] = ()) -> None:
    """Prints records; omitted: names that a table does not show.

    On a terminal a prompt that all records share stands above the table, which cuts texts to fit.
    """
    from mlm.report import table

    names, limit = [name for name in list_names(rows) if name not in omitted], WIDEST
    if sys.stdout.isatty():
        limit = sys.maxsize
        if names[0] == "prompt" and len({row["prompt"] for row in rows}) == 1:
            print(f"{rows[0][names.pop(0)]}\n")

    def cut(name, value):
        is_long = name not in WHOLE and isinstance(value, str) and len(value) > limit
        return value[: limit - 1] + "…" if is_long else value

    shown = [{name: cut(name, row[name]) for name in names if name in row} for row in rows]
    table.print_table(shown, [table.Column(name, name, FORMATS.get(name, "")) for name in names])


def read_texts(texts: list[str], file: str, expected: str = "a text; --file=FILE reads those of a file") -> list[str]:
    """The texts of a command line, of a file or of standard input.

    Raises ConfigError for none, for both, and, with what is `expected`, for the name of a file among texts.
    """
    if named := next(filter(remote_files.names_file, texts), ""):
        errors.require(False, "text", named, expected)
    if texts and file:
        raise errors.ConfigError(f"--file = {file!r}: expected texts there or on the command line, not both")
    texts = texts or list(text_files.read_numbered_lines("--file", file).values())
    errors.require(all(map(str.strip, texts)), "text", "", "a text, or --file=TEXTS")
    return texts


def fill(args, load) -> Iterator[dict]:
    """Records of the most probable tokens of each [MASK]."""
    texts = read_texts(args.texts, args.file)
    for text, masks in zip(texts, load().fill_mask(texts, args.top_k), strict=True):
        for number, fillings in enumerate(masks, 1):
            for rank, filling in enumerate(fillings, 1):
                yield {"prompt": text, "mask": number, "rank": rank, **dataclasses.asdict(filling)}


def embed(args, load) -> Iterator[dict]:
    """Writes the texts' embeddings as an array S x D to --out."""
    import numpy as np

    texts, out = read_texts(args.texts, args.file), check_output(args.out, ".npy")
    h_SxD = load().encode(texts, layer=args.layer, pooling=args.pooling)
    with files.atomic_write(out) as path, path.open("wb") as file:
        np.save(file, h_SxD)
    yield {"written": args.out, "texts": h_SxD.shape[0], "width": h_SxD.shape[1]}


def similar(args, load) -> Iterator[dict]:
    """Records of the texts, or words, that are most similar to each text; --file has those to search."""
    texts = read_texts(args.texts, "")
    errors.require(bool(args.file), "--file", args.file, "the file of texts to search, one a line")
    is_mean = args.pooling in ("", "mean")
    errors.require(is_mean or not args.word, "--pooling", args.pooling, "mean, over --word's pieces")
    lines = text_files.read_numbered_lines("--file", args.file)
    model, number, others = load(), list(lines), list(lines.values())
    if args.word:
        from mlm.inference import neighbors

        for text in texts:
            near = neighbors.find_neighbors(model, text, args.word, others, args.top_k, args.layer)
            errors.require(bool(near), "--file", args.file, "a text with a word that this model has entries for")
            for rank, one in enumerate(near, 1):
                yield {"prompt": text, "rank": rank, **one._asdict(), "line": number[one.line]}
        return
    for text, near in zip(texts, model.similar(texts, others, args.top_k, args.layer, args.pooling), strict=True):
        for rank, one in enumerate(near, 1):
            yield {"prompt": text, "rank": rank, "cosine": one.cosine, "line": number[one.index], "text": one.text}


def score(args, load) -> Iterator[dict]:
    """Records of the texts' log-likelihoods (nats, bits per byte), or of the surprisal of each word or token."""
    texts, overlap = read_texts(args.texts, args.file), None if args.overlap < 0 else args.overlap
    for line, parts in enumerate(load().surprisal(texts, args.by, args.metric, overlap=overlap), 1):
        if args.by == "text":
            bits = parts[0].nats / math.log(2) / len(parts[0].text.encode("utf-8", "surrogatepass"))
            yield {"nats": -parts[0].nats, "bits_per_byte": bits, "text": parts[0].text}
            continue
        for number, part in enumerate(parts, 1):
            nats = None if math.isnan(part.nats) else part.nats
            place = {"line": line, "number": number, args.by: part.text, "start": part.start, "end": part.end}
            yield place | {"surprisal": nats, "bits": nats and nats / math.log(2)}


def predict(args, load) -> Iterator[dict]:
    """Records of the predicted labels, of each word if the task is tagging; or the rows of a table with them."""
    words = [*args.texts, *filter(None, [args.file])]
    expected = "texts, or one table that is there; --file=FILE reads texts"
    is_file = len(words) == 1 and remote_files.names_file(words[0])
    path = remote_files.fetch_file("predict", words[0], expected) if is_file else ""
    is_table = is_file and records.detect_kind(path) != records.TEXT
    texts = [] if is_table else read_texts(args.texts, args.file and (path or args.file), expected)
    from mlm.inference import prediction

    model = load()
    if is_table:
        yield from prediction.predict_table(model, path)
        return
    has_words = prediction.labels_words(model.config)
    given = [text.split() if has_words else tuple(text.split("\t")) for text in texts]
    for text, found in zip(given, model.predict(given), strict=True):
        for word, one in zip(text, found, strict=True) if has_words else [(" | ".join(text), found)]:
            yield {"label": one.label, "probability": one.probability, "text": word}


def readability(args, load) -> Iterator[dict]:
    """Records of passages, from the most to the least readable."""
    texts = read_texts(args.texts, args.file)
    extras.import_extra("pyphen", "evaluate", "mlm readability")
    from mlm.evaluation import readability as passages

    measured = passages.measure_readability(load(), texts, args.every)
    found = [(one, passages.compute_reading_ease(one.text)) for one in measured]
    easy = sorted((ease for _, ease in found), reverse=True)
    for rank, (one, ease) in enumerate(sorted(found, key=lambda pair: -pair[0].cloze_score), 1):
        scores = {"rank": rank, "cloze": one.cloze_score, "exact": one.exact, "words": one.words}
        yield scores | {"flesch_rank": easy.index(ease) + 1, "flesch": ease, "text": one.text}


def attention(args, load) -> Iterator[dict]:
    """The page of a text, or with --json the numbers of each."""
    texts, has_page = read_texts(args.texts, args.file), bool(args.out or not args.json)
    if has_page:
        extras.import_extra("jinja2", "report", "mlm attention --out")
        errors.require(len(texts) == 1, "attention", len(texts), "one text, which the page is of")
        check_output(args.out, ".html")
    from mlm.inference import attention_maps

    model = load()
    for text in texts:
        maps = attention_maps.compute_attention_maps(model, text)
        if not has_page:
            yield {"text": text, **attention_maps.format_json(maps)}
            continue
        from mlm.report.pages import attention as attention_page

        page = attention_page.render_page(Path(args.model).resolve().name, text, **maps._asdict())
        files.write_text(Path(args.out), page)
        yield {"written": args.out, "tokens": len(maps.tokens)}


def export(args, load) -> Iterator[dict]:
    """Writes a Hugging Face folder, and uploads it."""
    files.check_empty_folder("export", args.folder)  # before JAX is imported
    from mlm.inference import export as exports
    from mlm.training.run import checkpoint, directory

    steps = checkpoint.list_milestones(directory.RunDirectory(args.model)) if args.milestones else []
    expected = "a run with milestones, which config.train.milestones keeps"
    errors.require(bool(steps) or not args.milestones, "--milestones", args.model, expected)
    if args.push:
        exports.check_repository(args.push)
    done = exports.save_pretrained(
        load(), args.folder, sentence_transformers=args.sentence_transformers, milestones=map(load, steps)
    )
    if args.milestones:
        done["milestones"] = ", ".join(map(str, steps))
    if args.push:
        done["pushed"] = ", ".join(f"{args.push}@{branch}" for branch in exports.push_folder(args.folder, args.push))
    yield done


def generate(args, load) -> Iterator[dict]:
    """Records of texts that begin with those of the command line or of --file; without any, with an empty one."""
    texts = read_texts(args.texts, args.file) if args.texts or args.file else [""]
    options = {flag.name: getattr(args, flag.name) for flag in (*BEAMS, *SAMPLING)}
    return _number_texts(texts, load().generate(texts, **options))


def translate(args, load) -> Iterator[dict]:
    """Records of translations."""
    texts = read_texts(args.texts, args.file)
    options = {flag.name: getattr(args, flag.name) for flag in BEAMS}
    return _number_texts(texts, load().translate(texts, **options))


def _number_texts(texts, found) -> Iterator[dict]:
    for prompt, generated in zip(texts, found, strict=True):
        for number, one in enumerate(generated, 1):
            record = {"log_prob": one.log_prob, "tokens": one.num_tokens, "text": one.text}
            yield {"prompt": prompt, "number": number} | record


class ModelCommand(NamedTuple):
    """A command that uses a trained model."""

    # (args, load) -> its records. It calls load() for the model once all is right that needs none.
    answer: Callable[[argparse.Namespace, Callable[..., Any]], Iterator[dict]]
    example: str  # a command line
    flags: tuple[Flag, ...] = ()  # those beside MODEL, texts, --file, --out and --json
    texts: str = TEXTS_HELP  # what its texts are
    file: str = "texts, one a line"  # what --file is for
    out: str = RECORDS  # what --out writes; RECORDS: its records; "": it writes a folder, and has no texts and --out
    omitted: tuple[str, ...] = ()  # the records' names that its table does not show
    is_text: bool = False  # whether its texts are printed in full, and alone


COMMANDS = {
    "fill": ModelCommand(fill, 'mlm fill runs/a "the [MASK] milks the old cow ."', (TOP_K,), omitted=("text",)),
    "embed": ModelCommand(
        embed, "mlm embed runs/a --file=texts.txt --out=vectors.npy --layer=-1", STATES, out=".npy, a row a text"
    ),
    "similar": ModelCommand(
        similar,
        'mlm similar runs/a "the horse sleeps near the river ." --word=river --file=texts.txt',
        (TOP_K, *STATES, WORD),
        "texts; without any, the lines of standard input",
        file="texts, one a line; those to search",
    ),
    "score": ModelCommand(
        score, 'mlm score runs/a "the singer hears the guitar ." --by=word --out=surprisal.csv', SCORE
    ),
    "predict": ModelCommand(
        predict,
        "mlm predict runs/a/tasks/reviews new.csv --out=predictions.csv",
        texts=f"{TEXTS_HELP}; a tab separates the two of a pair, white space the words to tag",
        file="texts, one a line; or a table (csv, tsv, JSON lines, Parquet), whose rows and columns are kept",
    ),
    "generate": ModelCommand(
        generate,
        'mlm generate runs/a "the old horse" --temperature=0.8 --top_p=0.9 --num_return_sequences=3',
        (*BEAMS, *SAMPLING),
        "starts of texts; without any, the lines of --file, or one that is empty",
        is_text=True,
    ),
    "translate": ModelCommand(
        translate, 'mlm translate runs/a "the old horse sleeps ." --num_beams=4', BEAMS, is_text=True
    ),
    "readability": ModelCommand(
        readability,
        "mlm readability runs/a --file=passages.txt",
        (Flag("every", 5, "delete one of this many words (5)", low=2),),
    ),
    "attention": ModelCommand(
        attention, 'mlm attention runs/a "the old horse sleeps ." --out=page.html', out="the page, .html"
    ),
    "export": ModelCommand(export, "mlm export runs/a FOLDER", EXPORT, out=""),
}


def make_parser(name: str) -> command.CommandParser:
    """The command's flags."""
    from mlm.cli import entry

    example = "mlm serve runs/a runs/b --file=texts.txt" if name == "serve" else COMMANDS[name].example
    purpose = entry.COMMANDS[name][1]
    description = f"{purpose[0].upper()}{purpose[1:]}.\n\n    {example}"
    parser = command.CommandParser(prog=f"mlm {name}", description=description)
    if name == "serve":
        parser.add_argument("models", metavar="MODEL", nargs="+", help=f"models to show side by side: {MODEL_HELP}")
        command.add_flags(parser, *SERVE)
        return parser
    chosen = COMMANDS[name]
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    if chosen.out:
        parser.add_argument("texts", metavar="TEXT", nargs="*", help=chosen.texts)
        command.add_flags(parser, Flag("file", "", chosen.file), Flag("out", "", f"file to write: {chosen.out}"))
    else:
        parser.add_argument("folder", metavar="FOLDER", help="folder to write")
    command.add_flags(parser, *chosen.flags, Flag("json", False, JSON_HELP))
    return parser


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    args = make_parser(words[0]).parse_words(words[1:])
    if words[0] == "serve":
        serve(args)
        return
    chosen = COMMANDS[words[0]]
    out = None
    if chosen.out == RECORDS and args.out:
        out = check_output(args.out, ".csv", ".jsonl")
        read = (os.path.realpath(name) for name in (args.file, *args.texts))
        errors.require(os.path.realpath(out) not in read, "--out", args.out, "no file that is read")

    def load(step: int | None = None):
        from mlm.inference import pretrained_io

        command.raise_on_interrupt()
        return pretrained_io.load_model(args.model, step)

    answers = chosen.answer(args, load)
    first = list(itertools.islice(answers, 1))
    named = args.file or " ".join(args.texts) if chosen.out else ""
    errors.require(bool(first), words[0], named, "a text that the model reads tokens of")
    answers = itertools.chain(first, answers)
    found = [{"written": args.out, "records": write_records(out, answers)}] if out else list(answers)
    if args.json:
        for row in found:
            print(format_json(row))
    elif chosen.is_text and not out:
        print("\n\n".join(row["text"] for row in found))
    else:
        print_table(found, omitted=chosen.omitted)


def serve(args: argparse.Namespace) -> None:
    """Serves the page until the process ends."""
    from mlm.serve import app

    texts = text_files.read_numbered_lines("--file", args.file) if args.file else {}
    app.serve_models(args.models, texts, args.host, args.port)
