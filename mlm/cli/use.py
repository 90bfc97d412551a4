"""The commands that use a trained model: fill, embed, similar, score, predict, generate, translate, readability,
attention, export and serve.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from mlm.cli import command, records

EPILOG = """MODEL is a run's directory or a Hugging Face folder (BERT, RoBERTa or XLM-R, with or without a label head,
or GPT-2).
Texts are arguments, else the lines of --file or of standard input; a tab separates the two texts of a pair, white space
the words to tag. The output is a table, with --json a line for each answer; masks, ranks, numbers of texts and lines of
a file count from 1, token ids are the folder's own. From Python: mlm.load(MODEL).
"""
EXAMPLES = {
    "fill": 'mlm fill runs/a "the [MASK] milks the old cow ."',
    "embed": "mlm embed runs/a --file=texts.txt --out=vectors.npy --layer=-1 --pooling=mean",
    "similar": 'mlm similar runs/a "the horse sleeps near the river ." --word=river --file=texts.txt',
    "score": 'mlm score runs/a "the singer hears the guitar ." --metric=pll_word_l2r',
    "predict": "mlm predict runs/a/tasks/sst2 --file=reviews.txt --out=predictions.csv",
    "generate": 'mlm generate runs/a "the old horse" --temperature=0.8 --top_p=0.9 --num_return_sequences=3',
    "translate": 'mlm translate runs/a "the old horse sleeps ." --num_beams=4',
    "readability": "mlm readability runs/a --file=passages.txt",
    "attention": 'mlm attention runs/a "the old horse sleeps ." --out=page.html',
    "export": "mlm export runs/a FOLDER",
    "serve": "mlm serve runs/a runs/b --file=texts.txt",
}


OUTPUT_HELP = {"embed": ".npy, a row a text", "attention": "the page, .html"}


def make_parser(name: str) -> command.CommandParser:
    """The command's flags."""
    from mlm.cli.entry import COMMANDS

    purpose = COMMANDS[name][1]
    parser = command.CommandParser(
        prog=f"mlm {name}", epilog=EPILOG, description=f"{purpose[0].upper()}{purpose[1:]}.\n\n    {EXAMPLES[name]}"
    )
    one_up = command.Number(int, 1)
    if name == "serve":
        parser.add_argument("models", metavar="MODEL", nargs="+", help="models to show side by side")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 admits other machines")
        parser.add_argument(
            "--port", type=command.Number(int, 0, 65_535), default=8000, help="port to listen on; 0: any free port"
        )
        parser.add_argument("--file", default="", help="texts to search for similar ones, one a line")
        return parser
    parser.add_argument("model", metavar="MODEL", help="a run's directory or a Hugging Face folder")
    if name == "export":
        parser.add_argument("folder", metavar="FOLDER", help="folder to write")
    else:
        parser.add_argument("texts", metavar="TEXT", nargs="*", help="texts")
        parser.add_argument(
            "--file", default="", help="texts, one a line" + ("; those to search" if name == "similar" else "")
        )
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    if name in ("fill", "similar"):
        parser.add_argument("--top_k", type=one_up, default=5, help="how many answers (5)")
    if name in ("embed", "similar"):
        parser.add_argument("--layer", type=int, default=-1, help="0: the embeddings; -1: the last layer")
        parser.add_argument(
            "--pooling", choices=("mean", "first"), default="mean", help="the mean over tokens, or [CLS]'s state"
        )
    if name != "export":
        parser.add_argument(
            "--out", default="", help=f"file to write: {OUTPUT_HELP.get(name, 'the records, .csv or .jsonl')}"
        )
    if name == "similar":
        parser.add_argument(
            "--word",
            default="",
            help="a word of the text, or its number from 1: finds the words of "
            "--file that are most similar in their context",
        )
    if name == "score":
        parser.add_argument(
            "--metric",
            choices=("pll", "pll_word_l2r"),
            default="pll",
            help="mask each token alone, or with the rest of its word",
        )
    if name == "readability":
        parser.add_argument("--every", type=command.Number(int, 2), default=5, help="delete one of this many words (5)")
    if name in ("generate", "translate"):
        parser.add_argument("--num_beams", type=one_up, default=1, help="beams; 1: no beam search")
        parser.add_argument(
            "--length_penalty",
            choices=("none", "mean", "wu"),
            default="mean",
            help="with beams: divide a text's log-probability by nothing, its length, or ((5 + length) / 6)^0.6",
        )
        parser.add_argument("--num_return_sequences", type=one_up, default=1, help="texts for each")
    if name == "generate":
        parser.add_argument(
            "--temperature",
            type=command.Number(float, 0.0),
            default=0.0,
            help="sample from logits over this; 0: the likeliest token",
        )
        parser.add_argument(
            "--top_k", type=command.Number(int, 0), default=0, help="sample from the k likeliest tokens; 0: from all"
        )
        parser.add_argument(
            "--top_p",
            type=command.Number(float, 0.0, 1.0),
            default=1.0,
            help="sample from the likeliest tokens with this probability together",
        )
        parser.add_argument(
            "--max_length",
            type=command.Number(int, 0),
            default=0,
            help="tokens in all, at most; 0: as many as a row holds",
        )
        parser.add_argument("--seed", type=command.Number(int, 0, 2**32 - 1), default=0, help="of the sampling")
        parser.add_argument(
            "--unmask_order",
            choices=("left", "confidence"),
            help="in places of [MASK]s: left to right, or the surest first",
        )
        parser.add_argument(
            "--tokens_per_step", type=one_up, default=1, help="in places of [MASK]s: tokens filled in a pass"
        )
    return parser


def fill(model, texts: list[str], args) -> Iterator[dict]:
    """Records of the most probable tokens of each [MASK]."""
    for text, masks in zip(texts, model.fill_mask(texts, args.top_k), strict=True):
        for number, fillings in enumerate(masks, 1):
            for rank, filling in enumerate(fillings, 1):
                yield {"prompt": text, "mask": number, "rank": rank, **dataclasses.asdict(filling)}


def embed(model, texts: list[str], args) -> Iterator[dict]:
    """Writes the texts' embeddings as an array S x D to --out."""
    import numpy as np

    from mlm.base import files

    h_SxD = model.encode(texts, layer=args.layer, pooling=args.pooling)
    with files.atomic_write(Path(args.out)) as path, path.open("wb") as file:
        np.save(file, h_SxD)
    yield {"written": args.out, "texts": h_SxD.shape[0], "width": h_SxD.shape[1]}


def similar(model, texts: list[str], args) -> Iterator[dict]:
    """Records of the texts, or words, that are most similar to each text."""
    from mlm.base import errors
    from mlm.inference import neighbors

    number, others = list(args.lines), list(args.lines.values())
    if args.word:
        for text in texts:
            near = neighbors.find_neighbors(model, text, args.word, others, args.top_k, args.layer)
            errors.require(bool(near), "--file", args.file, "a text with a word that this model has entries for")
            for rank, one in enumerate(near):
                yield {"prompt": text, "rank": rank + 1, **one._asdict(), "line": number[one.line]}
        return
    for text, near in zip(texts, model.similar(texts, others, args.top_k, args.layer, args.pooling), strict=True):
        for rank, one in enumerate(near):
            yield {"prompt": text, "rank": rank + 1, "cosine": one.cosine, "line": number[one.index], "text": one.text}


def score(model, texts: list[str], args) -> Iterator[dict]:
    """Records of the texts' pseudo-log-likelihoods, in nats."""
    for text, nats in zip(texts, model.pseudo_log_likelihood(texts, args.metric).tolist(), strict=True):
        yield {"nats": nats, "text": text}


def predict(model, texts: list[str], args) -> Iterator[dict]:
    """Records of the predicted labels, of each word if the task is tagging."""
    tags = model.config.objective == "tagging"
    given = [text.split() if tags else tuple(text.split("\t")) for text in texts]
    for text, found in zip(given, model.predict(given), strict=True):
        for word, one in zip(text, found, strict=True) if tags else [(" | ".join(text), found)]:
            yield {"label": one.label, "probability": one.probability, "text": word}


def readability(model, texts: list[str], args) -> Iterator[dict]:
    """Records of passages, from the most to the least readable."""
    from mlm.evaluation import readability as passages
    from mlm.evaluation import reading_ease

    found = [
        (one, reading_ease.compute_reading_ease(one.text))
        for one in passages.measure_readability(model, texts, args.every)
    ]
    easy = sorted((ease for _, ease in found), reverse=True)
    for rank, (one, ease) in enumerate(sorted(found, key=lambda pair: -pair[0].cloze_score), 1):
        yield {
            "rank": rank,
            "cloze": one.cloze_score,
            "exact": one.exact,
            "words": one.words,
            "flesch_rank": easy.index(ease) + 1,
            "flesch": ease,
            "text": one.text,
        }


def attention(model, texts: list[str], args) -> Iterator[dict]:
    """The page of a text, or with --json the numbers of each."""
    from mlm.base import files
    from mlm.inference import attention_maps
    from mlm.report.pages import attention as attention_page

    if args.json and not args.out:
        for text in texts:
            yield {"text": text, **attention_maps.format_json(attention_maps.compute_attention_maps(model, text))}
        return
    looked = attention_maps.compute_attention_maps(model, texts[0])
    files.write_text(Path(args.out), attention_page.render_page(model.config.workdir, texts[0], **looked._asdict()))
    yield {"written": args.out, "tokens": len(looked.tokens)}


def export(model, texts: list[str], args) -> Iterator[dict]:
    """Writes a Hugging Face folder."""
    yield model.save_pretrained(args.folder)


def generate(model, texts: list[str], args) -> Iterator[dict]:
    """Records of generated texts."""
    yield from _number_texts(
        texts,
        model.generate(
            texts,
            num_beams=args.num_beams,
            length_penalty=args.length_penalty,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            max_length=args.max_length,
            num_return_sequences=args.num_return_sequences,
            seed=args.seed,
            unmask_order=args.unmask_order or "",
            tokens_per_step=args.tokens_per_step,
        ),
    )


def translate(model, texts: list[str], args) -> Iterator[dict]:
    """Records of translations."""
    yield from _number_texts(
        texts,
        model.translate(
            texts,
            num_beams=args.num_beams,
            length_penalty=args.length_penalty,
            num_return_sequences=args.num_return_sequences,
        ),
    )


def _number_texts(texts, found) -> Iterator[dict]:
    for prompt, generated in zip(texts, found, strict=True):
        for number, one in enumerate(generated, 1):
            yield {
                "prompt": prompt,
                "number": number,
                "log_prob": one.log_prob,
                "tokens": one.num_tokens,
                "text": one.text,
            }


COMMANDS = {
    "fill": fill,
    "embed": embed,
    "similar": similar,
    "score": score,
    "predict": predict,
    "export": export,
    "attention": attention,
    "readability": readability,
    "generate": generate,
    "translate": translate,
}
TEXT_OUTPUT = ("generate", "translate")  # commands whose texts are printed in full, and alone


def read_texts(name: str, args) -> list[str]:
    """The texts of a command line, of --file or of standard input. Raises ConfigError for none, or for both."""
    from mlm.base import errors, text_files

    if name == "export":
        return []
    texts = args.texts
    if name == "generate" and not texts and not args.file:
        return [""]
    if not texts:
        texts = list(text_files.read_numbered_lines("--file", "" if name == "similar" else args.file).values())
    elif args.file and name != "similar":
        raise errors.ConfigError(f"--file = {args.file!r}: expected texts there or on the command line, not both")
    errors.require(name == "generate" or all(map(str.strip, texts)), "text", "", "a text, or --file=TEXTS")
    return texts


def check_arguments(name: str, texts: list[str], args) -> Path | None:
    """The file of records to write. Raises ConfigError for what is wrong whatever the model, which is loaded then."""
    from mlm.base import errors, extras, files, text_files

    if name == "export":
        return files.check_empty_folder("export", args.folder)
    if name == "similar":
        errors.require(bool(args.file), "--file", args.file, "the file of texts to search, one a line")
        errors.require(not args.word or args.pooling == "mean", "--pooling", args.pooling, "mean, over --word's pieces")
        args.lines = text_files.read_numbered_lines("--file", args.file)
    if name == "readability":
        extras.import_extra("pyphen", "evaluate", "mlm readability")
    is_page = name == "attention" and (args.out or not args.json)
    if is_page:
        extras.import_extra("jinja2", "report", "mlm attention --out")
        errors.require(len(texts) == 1, "attention", len(texts), "one text, which the page is of")
    if name == "embed" or is_page:
        records.check_output(args.out, ".npy" if name == "embed" else ".html")
        return None
    return records.check_output(args.out, ".csv", ".jsonl") if args.out else None


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    name = words[0]
    args = make_parser(name).parse_words(words[1:])
    if name == "serve":
        from mlm.base import text_files
        from mlm.serve import app

        texts = text_files.read_numbered_lines("--file", args.file) if args.file else {}
        app.serve_models(args.models, texts, app.ServeOptions(args.host, args.port))
        return
    texts = read_texts(name, args)
    out = check_arguments(name, texts, args)
    from mlm.inference import pretrained_io

    command.raise_on_interrupt()
    found = list(COMMANDS[name](pretrained_io.load_model(args.model), texts, args))
    if out:
        records.write_records(out, found)
        found = [{"written": args.out, "records": len(found)}]
    if args.json:
        for row in found:
            print(records.format_json(row))
        return
    if name in TEXT_OUTPUT and not out:
        print("\n\n".join(row["text"] for row in found))
        return
    records.print_table(found, omitted=("text",) if name == "fill" else ())
