"""mlm floor: exact probabilities of texts of the built-in language, and its statistics beside those of texts."""

import dataclasses
import itertools

from mlm.base import errors, text_files
from mlm.base.flag import Flag
from mlm.cli import command

DESCRIPTION = """Exact probabilities of the built-in language; nothing is trained.

    mlm floor bound [--documents=200] [--orders=1]
    mlm floor score "the horse sleeps ." [--file=texts.txt]
    mlm floor next "the horse" [--top_k=10]
    mlm floor statistics [wikipedia] [novels] [FILE ...] [--words=1000000] [--boundary=file]

bound: sample held-out documents and print their mean -log P: left to right, right to left, word by word in a random
order, and over random masks of every size with the exact posterior. Errors of differences are paired over documents.
score: print -log P of each document. next: print the most probable next words.
statistics: print how words are distributed in the language, in the presets of these names (mlm/experiment/recipes.py)
and in texts, of equal numbers of words, in passages of data.language.max_words: vocabulary, Zipf's exponent, entropy,
repeats and mutual information by distance, perplexities of n-grams. A word is a run of letters in lower case or a mark.
The fields data.language.* define the language.
"""
FLAGS = (
    Flag("documents", 200, "bound: number of documents to sample (200)", low=2),
    Flag("orders", 1, "bound: number of random masks of each size (1)", low=1),
    Flag("file", "", "score: documents, one a line"),
    Flag("top_k", 10, "next: number of words to print (10)", low=1),
    Flag("words", 1_000_000, "statistics: number of words to count, of each source (1000000)", low=1000),
    Flag("boundary", "file", "statistics: where a document of a text ends, as config.data.document_boundary (file)"),
)


def make_parser() -> command.CommandParser:
    """The command's flags."""
    parser = command.CommandParser(prog="mlm floor", description=DESCRIPTION, has_fields=True)
    parser.add_argument("verb", metavar="VERB", help="bound, score, next or statistics")
    parser.add_argument(
        "texts",
        metavar="TEXT",
        nargs="*",
        help="documents (score), the beginning of a document (next), or presets and files of text (statistics)",
    )
    command.add_flags(parser, *FLAGS)
    return parser


def measure_bound(language, args):
    """The mean -log P of documents, computed in several ways, in nats per document and per word (the end counts)."""
    import numpy as np

    from mlm.base.estimates import compute_ratio
    from mlm.data.language import diffusion_bound, floor, grammar, hmm
    from mlm.data.text.corpus import FIRST_VALIDATION_NUMBER

    errors.require(not args.texts, "bound", args.texts, "no text: bound samples its documents")
    model = grammar.build_grammar(language).hmm
    words_NxL = hmm.sample_documents(model, language.max_words, language.seed, FIRST_VALIDATION_NUMBER, args.documents)
    count_N = (words_NxL >= 0).sum(1)
    left_N = floor.compute_causal_floor(model, words_NxL, language.max_words).nats_N
    length_N = -diffusion_bound.compute_length_log_probs(model, language.max_words)[count_N]
    exact_N = left_N - length_N
    in_order_N = diffusion_bound.compute_random_order_loss(model, words_NxL, language.seed)
    over_masks_N = diffusion_bound.compute_integrated_loss(model, words_NxL, language.seed, args.orders)
    losses = {
        "document, left to right": left_N,
        "document, right to left": floor.compute_backward_floor(model, words_NxL, language.max_words).nats_N,
        "its number of words": length_N,
        "its words, given their number: the exact bound": exact_N,
        "exact posterior, word by word in a random order": in_order_N,
        "exact posterior, over masks of every size": over_masks_N,
        "random order minus the exact bound": in_order_N - exact_N,
        "masks minus the exact bound": over_masks_N - exact_N,
    }
    for label, nats_N in losses.items():
        values = *compute_ratio(nats_N, np.ones(len(count_N))), *compute_ratio(nats_N, count_N)
        yield {"what": label} | dict(zip(("document", "document_error", "word", "word_error"), values, strict=True))


def score_texts(language, args):
    """-log P of each text as a complete document, in nats and in nats per word."""
    from mlm.data.language.diffusion_bound import compute_document_log_probs

    expected = "texts in a file or on the command line, not both"
    errors.require(bool(args.texts) != bool(args.file), "--file", args.file, expected)
    texts = args.texts or list(text_files.read_numbered_lines("--file", args.file).values())
    for text, log_prob in zip(texts, compute_document_log_probs(language, texts), strict=True):
        yield {"what": text, "document": -float(log_prob), "word": -float(log_prob) / max(len(text.split()), 1)}


def rank_next_words(language, args):
    """The most probable next words."""
    import numpy as np

    from mlm.data.language.causal_posterior import predict_next_word

    errors.require(len(args.texts) == 1, "next", args.texts, "one text")
    words, log_prob_W = predict_next_word(language, args.texts[0])
    for word_id in np.argsort(-log_prob_W, kind="stable")[: args.top_k]:
        yield {"what": words[word_id] or "(the end)", "probability": float(np.exp(log_prob_W[word_id]))}


def compare_statistics(language, args):
    """The statistics of words: of the language, and of each file and preset; a column a source."""
    import numpy as np

    from mlm.data.language import grammar
    from mlm.data.text import files, word_statistics
    from mlm.experiment.recipes import LANGUAGES

    boundary = files.make_boundary("--boundary", args.boundary)
    found: dict[str, dict[str, float]] = {}
    for source in dict.fromkeys(["language", *args.texts]):
        if fields := LANGUAGES.get(source):
            language = dataclasses.replace(language, **{name.rpartition(".")[2]: x for name, x in fields.items()})
        is_language = source in LANGUAGES
        if is_language:
            documents = map(str.split, grammar.iterate_documents(language))
            passages = list(itertools.islice(documents, args.words // language.max_words))
        else:
            texts = files.read_documents(files.find_files("TEXT", source), boundary)
            words = (word_statistics.split_words(text.text) for text in texts)
            passages = word_statistics.sample_passages(words, language.max_words, args.words)
        found[source] = word_statistics.compute_statistics(word_statistics.number_words(passages))
        if is_language:  # of a text's words nobody knows the classes
            known = grammar.build_grammar(language)
            kinds = dict(zip(known.words, known.kind_W.tolist(), strict=True))
            shared = ["/" in kinds[word] for word in itertools.chain(*passages)]
            found[source]["share of words that may be noun or verb"] = float(np.mean(shared))
    for title in dict.fromkeys(itertools.chain(*found.values())):
        values = {source: own[title] for source, own in found.items() if title in own}
        texts = {source: f"{x:,.0f}" if x >= 1000 else f"{x:.3g}" for source, x in values.items()}
        yield {"what": title} | texts


VERBS = {"bound": measure_bound, "score": score_texts, "next": rank_next_words, "statistics": compare_statistics}


def main(words: list[str]) -> None:
    """Runs the command; words: its name, then its arguments."""
    config_flags, others = command.extract_config_flags(words[1:])
    args = make_parser().parse_words(others)
    from mlm.report.table import Column, print_table
    from mlm.training.run import resolution

    errors.require_one_of("verb", args.verb, list(VERBS))
    cfg = resolution.resolve(config_flags.load_base(), {"data.corpus": "language"}, config_flags.overrides)
    command.raise_on_interrupt()
    rows = list(VERBS[args.verb](cfg.data.language, args))
    columns = (
        Column("what", args.verb),
        Column("probability", "probability", ".4f"),
        Column("document", "nats", ".4f"),
        Column("document_error", "its error", ".4f"),
        Column("word", "nats per word", ".5f"),
        Column("word_error", "its error", ".5f"),
    )
    sources = dict.fromkeys(name for row in rows for name in row) if args.verb == "statistics" else {}
    shown = [column for column in columns if column.name in rows[0]]
    print_table(rows, [*shown, *(Column(name, name) for name in sources if name != "what")])
