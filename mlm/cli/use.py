"""Uses a trained model: fills in what is hidden, writes on, embeds texts, finds like ones, says how likely they are.

    python -m mlm.cli.use fill runs/a "The capital of France is [MASK]."
    python -m mlm.cli.use embed runs/a --file=texts.txt --out=vectors.npy --layer=-1 --pool=mean
    python -m mlm.cli.use similar runs/a "A man plays the guitar." --file=texts.txt
    python -m mlm.cli.use similar runs/a "He sat by the bank of the river" --word=bank --file=texts.txt
    python -m mlm.cli.use score runs/a "A man plays the guitar." --metric=pll_word_l2r
    python -m mlm.cli.use predict runs/a/tasks/sst2 "a charming journey"
    python -m mlm.cli.use cloze runs/a --file=passages.txt
    python -m mlm.cli.use generate runs/a "Once upon a time" --temperature=0.8 --top_p=0.9 --count=3
    python -m mlm.cli.use translate runs/a "Ein Mann spielt Gitarre." --beam=4
    python -m mlm.cli.use attend runs/a "A man plays the guitar." --out=page.html
    python -m mlm.cli.use export runs/a FOLDER
    python -m mlm.cli.use serve runs/a runs/b --file=texts.txt

A Hugging Face folder (BERT, RoBERTa or XLM-R, also with a head of labels, or GPT-2: config.json, model.safetensors, a
tokenizer) stands for a run; export writes one, with a model card. generate without a text begins one; a model that was
not trained from the left fills the [MASK]s of a text, or --length tokens. cloze ranks passages by how many deleted
words a model fills in exactly (Taylor 1953), beside Flesch's reading ease. serve shows models side by side on a page of
this machine, and finds neighbours among the lines of --file. Texts are arguments, else the lines of --file or of
standard input; a pair's two texts stand apart by a tab, words to tag by white space. A table for a person, with --json
a line for each text; what is written, as it is.
From Python: mlm.open("runs/a").
"""
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from mlm.cli import command, write
from mlm.serve import app

_FILE = flags.DEFINE_string("file", "", "Texts, one a line; similar, serve: those to search.")
_TOP = flags.DEFINE_integer("top", 5, "fill, similar: how many.", lower_bound=1)
_LAYER = flags.DEFINE_integer("layer", -1, "embed, similar: 0 the embeddings, -1 the last layer.")
_POOL = flags.DEFINE_enum("pool", "mean", ["mean", "first"], "embed, similar: the mean over tokens, or [CLS]'s state.")
_OUT = flags.DEFINE_string("out", "", "embed: the file to write, .npy, a row a text. attend: the page, .html.")
_METRIC = flags.DEFINE_enum("metric", "pll", ["pll", "pll_word_l2r"], "score: each token hidden alone, or with the "
                            "rest of its word.")
_EVERY = flags.DEFINE_integer("every", 5, "cloze: one of so many words is deleted.", lower_bound=2)
_WORD = flags.DEFINE_string("word", "", "similar: a word of the text, or its number from 1: the words of --file that "
                            "are most like it in their context.")
_JSON = flags.DEFINE_bool("json", False, "Lines of JSON.")


def numbered(path: str) -> dict[int, str]:
    """The lines of a file, or of standard input where it is "", that hold something, by their number from 1."""
    from mlm.base import errors

    try:
        given = Path(path).read_text() if path else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise errors.ConfigError(f"{path or 'standard input'}: expected UTF-8 ({errors.first_line(error)})") from None
    except OSError as error:
        raise errors.ConfigError(f"--file = {path!r}: expected a file ({error.strerror})") from None
    found = {number: line for number, line in enumerate(given.split("\n"), 1) if line.strip()}
    errors.require(bool(found), f"--file = {path!r}" if path else "standard input", len(found), "a text, one a line")
    return found


def lines(path: str) -> list[str]:
    return list(numbered(path).values())


def writable(ending: str) -> Path:
    """--out, which ends so, where a file can be written."""
    from mlm.base import errors, files

    path = Path(_OUT.value)
    errors.require(_OUT.value.endswith(ending), "--out", _OUT.value, f"the name of a file to write, FILE{ending}")
    errors.require(path.parent.is_dir() and not path.is_dir(), "--out", _OUT.value, "a file in a folder that is there")
    files.check_folder("--out", str(path.parent))
    return path


def fill(model, texts: list[str]) -> Iterator[dict]:
    for text, masks in zip(texts, model.fill(texts, top=_TOP.value), strict=True):
        for number, fillings in enumerate(masks):
            for rank, filling in enumerate(fillings):
                yield {"asked": text, "mask": number, "rank": rank + 1, **filling._asdict()}


def embed(model, texts: list[str]) -> Iterator[dict]:
    import numpy as np

    from mlm.base import files

    out = writable(".npy")
    h_SxD = model.embed(texts, layer=_LAYER.value, pool=_POOL.value)
    with files.atomic_write(out) as path, path.open("wb") as file:
        np.save(file, h_SxD)
    yield {"written": _OUT.value, "texts": h_SxD.shape[0], "width": h_SxD.shape[1]}


def similar(model, texts: list[str]) -> Iterator[dict]:
    from mlm.base import errors
    from mlm.inference import neighbors

    errors.require(bool(_FILE.value), "--file", _FILE.value, "the file of texts to search, one a line")
    found = numbered(_FILE.value)
    number, others = list(found), list(found.values())
    if _WORD.value:
        errors.require(_POOL.value == "mean", "--pool", _POOL.value, "mean, over the pieces of --word")
        for text in texts:
            near = neighbors.nearest(model, text, _WORD.value, others, _TOP.value, _LAYER.value)
            errors.require(bool(near), "--file", _FILE.value, "a text with a word that this model has entries for")
            for rank, one in enumerate(near):
                yield {"asked": text, "rank": rank + 1, **one._asdict(), "line": number[one.line]}
        return
    for text, near in zip(texts, model.similar(texts, others, top=_TOP.value, layer=_LAYER.value, pool=_POOL.value),
                          strict=True):
        for rank, (place, cosine) in enumerate(near):
            yield {"asked": text, "rank": rank + 1, "cosine": cosine, "line": number[place], "text": others[place]}


def score(model, texts: list[str]) -> Iterator[dict]:
    for text, nats in zip(texts, model.score(texts, _METRIC.value).tolist(), strict=True):
        yield {"nats": nats, "text": text}


def predict(model, texts: list[str]) -> Iterator[dict]:
    tags = model.cfg.objective == "tag"
    given = [text.split() if tags else tuple(text.split("\t")) for text in texts]
    for text, found in zip(given, model.predict(given), strict=True):
        for word, one in zip(text, found, strict=False) if tags else [(" | ".join(text), found)]:
            yield {"label": one.label, "probability": one.probability, "text": word}


def cloze(model, texts: list[str]) -> Iterator[dict]:
    from mlm.evaluation import readability, reading_ease

    found = [(one, reading_ease.reading_ease(one.text)) for one in readability.passages(model, texts, _EVERY.value)]
    easy = sorted((ease for _, ease in found), reverse=True)
    for rank, (one, ease) in enumerate(sorted(found, key=lambda pair: -pair[0].share), 1):
        yield {"rank": rank, "cloze": one.share, "exact": one.exact, "words": one.words,
               "flesch_rank": easy.index(ease) + 1, "flesch": ease, "text": one.text}


def attend(model, texts: list[str]) -> Iterator[dict]:
    """The page of a text, or with --json the numbers of each."""
    from mlm.base import errors, files
    from mlm.inference import attention_maps
    from mlm.report.pages import attention

    if _JSON.value and not _OUT.value:
        yield from ({"text": text, **attention_maps.plain(attention_maps.ask(model, text))} for text in texts)
        return
    path = writable(".html")
    errors.require(len(texts) == 1, "attend", len(texts), "one text, which the page is of")
    looked = attention_maps.ask(model, texts[0])
    files.write_text(path, attention.page(model.cfg.workdir, texts[0], **looked._asdict()))
    yield {"written": _OUT.value, "tokens": len(looked.tokens)}


def export(model, given: list[str]) -> Iterator[dict]:
    from mlm.base import errors
    from mlm.inference import pretrained_io

    errors.require(len(given) == 1, "export", given, "one folder to write")
    yield pretrained_io.write(model, given[0])


COMMANDS = {"fill": fill, "embed": embed, "similar": similar, "score": score, "predict": predict, "attend": attend,
            "cloze": cloze, "generate": write.generate, "translate": write.translate, "export": export}
WRITTEN = ("generate", "translate")  # whose texts are shown whole, and alone
FORMS = {"probability": ".3f", "cosine": ".3f", "nats": ".2f", "cloze": ".3f", "flesch": ".1f", "texts": ",d"}
TEXTS, WIDEST = ("asked", "text"), 80  # columns of texts, of which a table shows so many letters


def main(argv):
    from mlm.base import errors

    wanted = f"python -m mlm.cli.use {'|'.join([*COMMANDS, 'serve'])} RUN [TEXT ...]"
    if len(argv) < 3:
        raise errors.ConfigError(f"expected what to do and the directory of a run: {wanted}")
    _, what, workdir, *texts = argv
    errors.require_one_of("command", what, [*COMMANDS, "serve"])
    if what == "serve":
        app.serve([workdir, *texts], numbered(_FILE.value) if _FILE.value else {})
    if what == "generate" and not texts and not _FILE.value:
        texts = [""]
    elif not texts and what != "export":
        texts = lines("" if what == "similar" else _FILE.value)
    elif _FILE.value and what != "similar":
        raise errors.ConfigError(f"--file = {_FILE.value!r}: expected texts there or on the command line, not both")
    errors.require(what in ("export", "generate") or all(map(str.strip, texts)), "text", "", "a text, or --file=TEXTS")
    import mlm
    from mlm.report.table import Column, markdown

    command.listen()
    found = list(COMMANDS[what](mlm.open(workdir), texts))
    if _JSON.value:
        for row in found:
            print(json.dumps(row, ensure_ascii=False))
        return
    if what in WRITTEN:
        print("\n\n".join(row["text"] for row in found))
        return
    found = [{name: value[:WIDEST - 1] + "…" if name in TEXTS and len(value) > WIDEST else value
              for name, value in row.items()} for row in found]
    print(markdown(found, [Column(name, name, FORMS.get(name, "")) for name in found[0]]))


if __name__ == "__main__":
    command.run(main)
