"""What the built-in language says of its texts, exactly; and that a perfect diffusion model's bound is a document's
log-probability.

    python -m experiments.floor bound [--documents=200] [--orders=1]
    python -m experiments.floor score "the horse sleeps ." [--file=texts.txt]
    python -m experiments.floor next "the horse" [--top=10]

bound draws held-out documents and prints what each of them costs: read from the left, from the right, told word by
word in a random order, and by drawn masks of every size under the exact posterior; the errors of the differences are
paired over documents. score prints -log P of each document, next what may come next. The language is that of
--config.data.language.*; nothing is trained.
"""
import sys
from pathlib import Path

from absl import flags

from mlm.cli import command

_DOCUMENTS = flags.DEFINE_integer("documents", 200, "bound: how many are drawn.", lower_bound=2)
_ORDERS = flags.DEFINE_integer("orders", 1, "bound: random orders for each size of masks.",
                               lower_bound=1)
_FILE = flags.DEFINE_string("file", "", "score: documents, one a line.")
_TOP = flags.DEFINE_integer("top", 10, "next: how many words.", lower_bound=1)


def bound(language, given):
    """What a document costs, however it is told, in nats per word of which there is one more where its end is told."""
    import numpy as np

    from mlm.base import errors
    from mlm.base.estimates import ratio
    from mlm.data.language import bound, floor, grammar, hmm
    from mlm.data.text.corpus import HELD_OUT

    errors.require(not given, "bound", given, "no text, since it draws documents")
    model = grammar.build(language).hmm
    words_NxL = hmm.draw(model, language.max_words, language.seed, HELD_OUT, _DOCUMENTS.value)
    count_N = (words_NxL >= 0).sum(1)
    left_N = floor.left_loss(model, words_NxL, language.max_words).nats_N
    length_N = -bound.log_length(model, language.max_words)[count_N]
    told = {"a document, from the left: -log P": left_N,
            "a document, from the right: -log P": floor.right_loss(model, words_NxL, language.max_words).nats_N,
            "how many words it has: -log P": length_N, "its words, given how many: the exact bound": left_N - length_N}
    told["the exact posterior, word by word in a random order"] = bound.in_order(model, words_NxL, language.seed)
    told |= {"the exact posterior over masks of every size": bound.integrated(
        model, words_NxL, language.seed, _ORDERS.value)}
    *_, exact_N, in_order_N, over_masks_N = told.values()
    told |= {"in a random order, less the exact bound": in_order_N - exact_N,
             "over masks, less the exact bound": over_masks_N - exact_N}
    ones_N = np.ones(len(count_N))
    for what, nats_N in told.items():
        of_document, of_word = ratio(nats_N, ones_N), ratio(nats_N, count_N)
        yield {"what": what, "document": of_document[0], "document_error": of_document[1],
               "word": of_word[0], "word_error": of_word[1]}


def score(language, given):
    """-log P of each text as a whole document, in nats, and by word."""
    from mlm.base import errors
    from mlm.data.language import probability

    errors.require(bool(given) != bool(_FILE.value), "--file", _FILE.value, "texts there or on the command line")
    try:
        texts = given or Path(_FILE.value).read_text(errors="replace").splitlines()
    except OSError as error:
        raise errors.ConfigError(f"--file = {_FILE.value!r}: expected a file ({error.strerror})") from None
    for text, log in zip(texts, probability.log_prob(language, texts), strict=True):
        yield {"what": text, "document": -float(log), "word": -float(log) / max(len(text.split()), 1)}


def following(language, given):
    """The likeliest next words."""
    import numpy as np

    from mlm.base import errors
    from mlm.data.language import probability

    errors.require(len(given) == 1, "next", given, "one text")
    words, log_W = probability.next_word(language, given[0])
    for place in np.argsort(-log_W, kind="stable")[:_TOP.value]:
        yield {"what": words[place] or "(the end)", "probability": float(np.exp(log_W[place]))}


COMMANDS = {"bound": bound, "score": score, "next": following}


def main(argv):
    from mlm.base import errors
    from mlm.report.table import Column, markdown
    from mlm.train import resolution

    _, what, *given = [*argv, ""] if len(argv) < 2 else argv
    errors.require_one_of("command", what, list(COMMANDS))
    cfg = resolution.resolve(command.base(), {"data.corpus": "language"}, command.overrides(sys.argv))
    resolution.check(cfg)
    command.listen()
    rows = list(COMMANDS[what](cfg.data.language, given))
    errors.require(bool(rows), "--file", _FILE.value, "a text, one a line")
    columns = (Column("what", what), Column("probability", "probability", ".4f"),
               Column("document", "nats", ".4f"), Column("document_error", "its error", ".4f"),
               Column("word", "nats per word", ".5f"), Column("word_error", "its error", ".5f"))
    print(markdown(rows, [column for column in columns if column.name in rows[0]]))


if __name__ == "__main__":
    command.run(main)
