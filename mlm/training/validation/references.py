"""Reference scores of the held-out examples that need no trained model: floors, and n-gram models."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from mlm import objectives
from mlm.base import config, recipe_constants, types
from mlm.base.estimates import Score, make_reference
from mlm.base.special import CLS, NUM_SPECIAL, PAD, SEP, UNK
from mlm.data.language import grammar, hmm, tasks, translation
from mlm.data.rows import loader, ngram, pack, store
from mlm.data.tasks.examples import Example
from mlm.data.text import parallel_text
from mlm.training.step import parallel, program, update
from mlm.training.validation import floors

FORMAT = 4  # of the cached files: raise it when floors or their parts are computed differently
NGRAM_FORMAT = 2  # the same of n-gram models
TEXT_CORPORA = ("text", "tfds", "docstrings")
BYTE_VISIBILITIES = (types.Visibility.UNMASKED, types.Visibility.CAUSAL, types.Visibility.TWO_STACK)
MASKED_VISIBILITIES = (types.Visibility.UNMASKED, types.Visibility.UNMASKED_OR_LEFT)
BITS_PER_BYTE = Score("bits_per_byte", "held-out bits per byte", (), unit="bits per byte", better=-1)
ACCURACY_SCORES = ("accuracy", "exact")  # scores that count correct predictions, whose optimum is known
MAX_SOURCE_CURVES = 8  # sources up to which each has a curve of its own
FLOOR_TITLES = {"floor": "Bayes optimum", "window_floor": "window floor", "bag_floor": "bag floor"}


class ReferenceLosses(NamedTuple):
    """Scores that go beside the objective's own, and the columns that they need."""

    scores: tuple[Score, ...] = ()
    # (columns of the model) -> the same with the references'; ValueError where these are of other predictions.
    add_columns: Callable[..., Any] = dict


def compute_references(cfg: config.Config, program_: program.Program, packed: pack.PackedDataset) -> ReferenceLosses:
    """The floors, n-gram models, and losses per word and byte that there are; none on processes that write none."""
    if not parallel.is_primary():
        return ReferenceLosses()
    loss, parts = program_.objective.scores[0], [compute_floors(cfg, program_, packed)]
    if cfg.eval.ngram_order:
        parts.append(make_ngram_references(cfg, packed, loss))
    if packed.sources:
        parts.append(make_source_references(cfg, packed, loss))
    visibility = objectives.get_visibility(cfg)
    predicts_words = visibility == types.Visibility.CAUSAL or (
        cfg.eval.mask_unit != "token" and visibility in MASKED_VISIBILITIES
    )
    if predicts_words and not packed.tokenizer.starts_word_V.all():
        names = {"unigram_nats": "unigram"} | name_ngrams(cfg.eval.ngram_order)
        parts.append(make_word_references(packed, compute_eval_mask(cfg, program_, packed), loss, names))
    has_bytes = cfg.data.corpus in TEXT_CORPORA and not packed.tokenizer.loses_space
    if has_bytes and visibility in BYTE_VISIBILITIES:
        bits_N = np.log(2) * count_bytes(packed, cfg.eval.max_examples, visibility != types.Visibility.UNMASKED)
        add_bits = lambda columns: columns | {"byte_bits": columns[loss.columns[-1]] * bits_N}
        parts.append(ReferenceLosses((BITS_PER_BYTE._replace(columns=(loss.columns[0], "byte_bits")),), add_bits))
    return merge_references(parts)


def name_ngrams(max_order: int) -> dict[str, str]:
    """The n-gram models of orders 2 to max_order, by the columns of their nats."""
    return {f"ngram{order}_nats": f"Kneser-Ney, order {order}" for order in range(2, max_order + 1)}


def make_ngram_references(cfg: config.Config, packed: pack.PackedDataset, loss: Score) -> ReferenceLosses:
    """The n-gram models, cached."""
    count = loader.count_eval_examples(packed.validation, cfg.eval.max_examples)

    def make(folder: Path) -> dict[str, Any]:
        grams = ngram.count_ngrams(packed.train, packed.dataset_info.vocab_size, cfg.eval.ngram_order)
        columns: dict[str, Any] = {}
        for order, column in enumerate(name_ngrams(cfg.eval.ngram_order), 2):
            smooth = ngram.smooth_counts(grams, order)
            columns[column], columns["ngram_predictions"] = ngram.compute_nats(smooth, packed.validation, count)
        np.savez(folder / "nats.npz", **columns)
        return {}

    inputs = {"rows": packed.manifest["inputs"], "order": cfg.eval.ngram_order, "examples": count}
    folder, _ = store.get_or_make_folder(cfg.data.cache_dir, "ngrams", {"format": NGRAM_FORMAT, **inputs}, make)
    with np.load(folder / "nats.npz") as file:
        ngram_columns = dict(file)
    count_N = ngram_columns.pop("ngram_predictions")

    def add_columns(columns: dict[str, np.ndarray]):
        if not np.array_equal(columns[loss.columns[-1]], count_N):
            raise ValueError("the n-gram models predict other tokens than the evaluation")
        return columns | ngram_columns

    return ReferenceLosses(make_ngram_scores(cfg, loss), add_columns)


def make_ngram_scores(cfg: config.Config, loss: Score) -> tuple[Score, ...]:
    """Loss and perplexity of each order, as references of a model's."""
    perplexity = Score("perplexity", "", loss.columns, "exp_mean", format=".2f")
    return tuple(
        make_reference(score, f"ngram{order}_{score.name}", f"{order}-gram {score.name}", (column,), reference)
        for order, (column, reference) in enumerate(name_ngrams(cfg.eval.ngram_order).items(), 2)
        for score in (loss, perplexity)
    )


def make_source_references(cfg: config.Config, packed: pack.PackedDataset, loss: Score) -> ReferenceLosses:
    """The model's loss on the held-out examples of each source."""
    count = loader.count_eval_examples(packed.validation, cfg.eval.max_examples)
    names = [source.name for source in packed.sources]
    source_N = np.repeat(np.arange(len(names)), [source.num_validation for source in packed.sources])[:count]

    def add_columns(columns: dict[str, np.ndarray]):
        own = {
            f"{column}_{name}": columns[column] * (source_N == number)
            for number, name in enumerate(names)
            for column in loss.columns
        }
        return columns | own

    scores = [
        loss._replace(
            name=f"{loss.name}_{name}",
            title=f"{loss.title}, {name}",
            columns=tuple(f"{column}_{name}" for column in loss.columns),
            chart=len(names) <= MAX_SOURCE_CURVES,
        )
        for name in names
    ]
    return ReferenceLosses(tuple(scores), add_columns)


def compute_floors(cfg: config.Config, program_: program.Program, packed: pack.PackedDataset) -> ReferenceLosses:
    """The floors of the losses under the evaluation's masks, or a task's optimum, if known; all models share them."""
    if cfg.data.corpus == "task" and cfg.data.task in tasks.TASKS:
        return make_optimum_references(cfg, packed, program_.objective)
    if parallel_text.is_generated(cfg.data):
        count = loader.count_eval_examples(packed.validation, cfg.eval.max_examples)
        names = "ids", "segments", "source_ids", "source_segments"
        columns = (np.asarray(packed.validation[name][:count]) for name in names)
        pairs = translation.decode_pairs(packed.tokenizer.pieces, *columns)
        floor = translation.compute_floor(cfg.data.language, pairs)  # some seconds per thousand examples
        return make_floor_references(program_.objective.scores[0], {"floor": floor})
    specs = floors.select_floors(cfg, program_.objective)
    if not specs:
        return ReferenceLosses()

    def save(folder: Path, compute: Callable[..., Any]):
        for loss, spec in specs.items():
            for name, function in {"floor": spec.floor, **spec.weaker_floors}.items():
                np.savez(folder / f"{loss.name}-{name}.npz", **compute(function)._asdict())
            if spec.document:
                np.savez(folder / f"{loss.name}-document.npz", **compute(spec.document))

    folder = _cache_floors(cfg, program_, packed, "floor", save)
    references = []
    for loss, spec in specs.items():
        files = {name: folder / f"{loss.name}-{name}.npz" for name in ("floor", *spec.weaker_floors)}
        sums = {name: np.load(file) for name, file in files.items()}  # older files hold more than a Floor's
        loss_floors = {name: hmm.Floor(*(one[part] for part in hmm.Floor._fields)) for name, one in sums.items()}
        references.append(make_floor_references(loss, loss_floors))
        if spec.document:
            document = np.load(folder / f"{loss.name}-document.npz")
            references.append(make_document_references(loss, spec.document_passes, **document))
    return merge_references(references)


def make_optimum_references(
    cfg: config.Config, packed: pack.PackedDataset, objective: types.Objective
) -> ReferenceLosses:
    """The Bayes-optimal accuracy on a task beside the model's, and how far the model is below it, by example."""
    task, count = tasks.TASKS[cfg.data.task], loader.count_eval_examples(packed.validation, cfg.eval.max_examples)

    def make(folder: Path) -> dict[str, Any]:
        examples = pack.read_examples(cfg, packed, "validation")
        rows = [Example(*(example[name] for name in ("id", "texts", "words", "label"))) for example in examples]
        best = task.score_optimum(cfg.data.language, rows)
        np.savez(folder / "best.npz", **best._asdict(), row_E=np.array([example["row"] for example in examples]))
        return {}

    inputs = {"format": tasks.FORMAT, "rows": packed.manifest["inputs"]}
    folder, _ = store.get_or_make_folder(cfg.data.cache_dir, "optimum", inputs, make)
    best_right_N, best_weight_N = np.zeros(count), np.zeros(count)
    with np.load(folder / "best.npz") as best:
        is_used_E = best["row_E"] < count
        best_right_N[best["row_E"][is_used_E]] = best["right_N"][is_used_E]
        best_weight_N[best["row_E"][is_used_E]] = best["weight_N"][is_used_E]
    accuracy = next(score for score in objective.scores if score.name in ACCURACY_SCORES)
    right, weight = accuracy.columns

    def add_columns(columns: dict[str, np.ndarray]):
        if not np.array_equal(columns[weight], best_weight_N):
            raise ValueError("the optimum was computed of other labels than the evaluation's")
        return columns | {"optimum_right": best_right_N, "shortfall": best_right_N - columns[right]}

    title = f"Bayes optimum's {accuracy.title.removeprefix('held-out ')}"
    optimum = make_reference(accuracy, "optimum", title, ("optimum_right",), "Bayes optimum")
    below = f"{accuracy.title} below the optimum"
    return ReferenceLosses(
        (optimum, Score("shortfall", below, ("shortfall", weight), better=-1, chart=True)), add_columns
    )


def merge_references(parts: Sequence[ReferenceLosses]) -> ReferenceLosses:
    """The reference losses with the scores and the columns of all parts."""
    return ReferenceLosses(
        tuple(score for part in parts for score in part.scores),
        lambda columns: functools.reduce(lambda merged, part: part.add_columns(merged), parts, columns),
    )


def decompose_floor(cfg: config.Config, program_: program.Program, packed: pack.PackedDataset) -> dict[str, np.ndarray]:
    """The parts of the first loss's floor: nats_N by the names of `floor.PARTS`. Built-in language only."""
    spec = next(iter(floors.select_floors(cfg, program_.objective).values()))

    def save(folder: Path, compute: Callable[..., Any]):
        np.savez(folder / "parts.npz", **compute(spec.decompose))

    with np.load(_cache_floors(cfg, program_, packed, "parts", save) / "parts.npz") as file:
        return dict(file)


def _cache_floors(
    cfg: config.Config, program_: program.Program, packed: pack.PackedDataset, prefix: str, save: Callable[..., Any]
):
    """The cached folder that save(folder, compute) fills; compute: (a function of a FloorSpec) -> its value."""
    mask_NxL = compute_eval_mask(cfg, program_, packed)

    def make(folder: Path):
        language = grammar.build_grammar(cfg.data.language)
        ids_NxL = packed.validation["ids"][: cfg.eval.max_examples or None]
        words_NxL = grammar.convert_ids_to_words(language, packed.tokenizer.pieces, np.asarray(ids_NxL, np.int32))
        inputs = floors.FloorInputs(language, words_NxL, mask_NxL, cfg.data.language.max_words)
        save(folder, lambda function: function(inputs))
        return {}

    inputs = {
        "format": FORMAT,
        "rows": packed.manifest["inputs"],
        "losses": objectives.get_loss_visibilities(cfg),
        "windows": (recipe_constants.WINDOW_NEIGHBORS, floors.get_bag_window(cfg.model)),
        "mask": hashlib.sha256(np.packbits(mask_NxL, axis=1).tobytes()).hexdigest(),
    }
    return store.get_or_make_folder(cfg.data.cache_dir, prefix, inputs, make)[0]


def compute_eval_mask(cfg: config.Config, program_: program.Program, packed: pack.PackedDataset) -> np.ndarray:
    """mask_NxL: the tokens of the held-out examples that the objective's evaluation predicts."""
    count = loader.count_eval_examples(packed.validation, cfg.eval.max_examples)
    batch = loader.read_batch(packed.validation, np.arange(count), np.arange(count, dtype=np.int32))
    hparams = program.make_eval_hparams(cfg)
    return np.asarray(_compute_eval_mask(program_.objective.eval_mask, batch.text, batch.index_B, hparams))


@functools.partial(jax.jit, static_argnums=0)
def _compute_eval_mask(
    eval_mask: types.EvalMaskFn, text: types.Tokens, index_B: types.Array, hparams: types.TracedHparams
):
    return eval_mask(text, update.make_eval_keys(hparams, index_B), hparams)


def make_floor_references(loss: Score, loss_floors: Mapping[str, hmm.Floor]) -> ReferenceLosses:
    """The floors beside a model's loss, and its excess over the floor, all in the loss's unit.

    Names begin like the loss's: "excess_loss" for "loss", "causal_excess_loss" for "causal_loss". The standard error of
    the excess is that of the paired difference, far below the loss's own: hard examples are hard for the floor too.
    """
    (nats, weight), prefix = loss.columns, loss.name.removesuffix("loss")
    excess = (f"{prefix}excess_loss", f"{loss.title} above the floor", (f"{prefix}excess_nats", weight))
    scores = [Score(*excess, unit=loss.unit, better=-1, chart=True)]
    accuracy = Score(f"{prefix}accuracy", "", ("", weight), share=True)
    for name in loss_floors:
        title, key = FLOOR_TITLES[name], f"{prefix}{name}"
        scores += [
            make_reference(loss, key, f"{title}'s loss", (f"{key}_nats",), title),
            make_reference(accuracy, f"{key}_accuracy", f"{title}'s accuracy", (f"{key}_correct",), title),
        ]

    def add_columns(columns: dict[str, np.ndarray]):
        columns = dict(columns)
        for name, loss_floor in loss_floors.items():
            if not np.array_equal(columns[weight], loss_floor.count_N):
                raise ValueError("the floor was computed under other masks than the evaluation's")
            columns |= {f"{prefix}{name}_nats": loss_floor.nats_N, f"{prefix}{name}_correct": loss_floor.correct_N}
        return columns | {f"{prefix}excess_nats": columns[nats] - loss_floors["floor"].nats_N}

    return ReferenceLosses(tuple(scores), add_columns)


def make_document_references(
    loss: Score, passes: int, document: np.ndarray, bound: np.ndarray | None = None
) -> ReferenceLosses:
    """Losses of whole documents in nats per document, so that objectives that predict them differently compare.

    passes: how often the loss predicts a document. document: -log P of each document, nats_N. A model's loss is this
    plus its excess, which is paired with the floor, and so leaves out the chance in a bound's masks. bound: the
    smallest possible expected loss over all masks, nats_N.
    """
    excess, title = f"{loss.name.removesuffix('loss')}excess_nats", FLOOR_TITLES["floor"]
    excess_title, floor_title = "loss of a document above the floor", f"{title}'s loss of a document"
    columns = ("document_nats", "documents")
    document_loss = Score("document_loss", "held-out loss of a document", columns, format=".2f", better=-1)
    document_loss = document_loss._replace(unit="nats per document")
    scores = [
        document_loss,
        document_loss._replace(
            name="document_excess_loss", title=excess_title, columns=("document_excess", columns[1])
        ),
        make_reference(document_loss, "document_floor", floor_title, ("document_floor_nats",), title),
    ]
    if bound is not None:
        bound_score = make_reference(loss, "bound", "exact bound over all masks", ("bound_nats",), "exact bound")
        scores.append(bound_score._replace(unit=f"{loss.unit}, over all masks"))

    def add_columns(columns: dict[str, np.ndarray]):
        excess_N = columns[excess] / passes
        new_columns = {
            "documents": np.ones(len(document)),
            "document_excess": excess_N,
            "document_floor_nats": document,
            "document_nats": document + excess_N,
        }
        return columns | ({} if bound is None else {"bound_nats": bound}) | new_columns

    return ReferenceLosses(tuple(scores), add_columns)


def count_bytes(packed: pack.PackedDataset, max_examples: int, predicts_ends: bool) -> np.ndarray:
    """bytes_N of UTF-8 for each token of an example that may be predicted, so that vocabularies compare.

    predicts_ends: whether [SEP] is one of them. What the vocabulary does not know has no bytes, and is not masked.
    """
    left_out = {PAD, CLS, *(() if predicts_ends else (SEP, UNK))}
    bytes_N = []
    for ids_L in np.asarray(packed.validation["ids"][: max_examples or None]):
        text = packed.tokenizer.decode(ids_L[ids_L >= NUM_SPECIAL].tolist())
        bytes_N.append(len(text.encode("utf-8", "surrogatepass")) / max(1, (~np.isin(ids_L, [*left_out])).sum()))
    return np.array(bytes_N)


def make_word_references(
    packed: pack.PackedDataset, mask_NxL: np.ndarray, loss: Score, references: Mapping[str, str]
) -> ReferenceLosses:
    """The loss per word of the model and of its references; references: their names, by the column of their nats.

    Words are the predicted tokens that begin one; [SEP] does, as <eos> in published perplexities. Of a whole masked
    word one counts.
    """
    ids_NxL = np.asarray(packed.validation["ids"][: len(mask_NxL)])
    num_words_N = (packed.tokenizer.find_word_starts(ids_NxL) & mask_NxL).sum(1)
    columns = loss.columns[0], "words"
    word_loss = Score("word_loss", "held-out loss per word", columns, unit="nats per word", better=-1)
    scores = (
        make_reference(
            word_loss, f"{column.removesuffix('_nats')}_word_loss", f"{reference}'s loss per word", (column,), reference
        )
        for column, reference in references.items()
    )
    return ReferenceLosses((word_loss, *scores), lambda columns: columns | {"words": num_words_N})
