"""Predictions of a fine-tuned model: a class or a number for each text, or a tag for each word."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlm.base import config, errors, types
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES, LabelKind
from mlm.base.special import UNK
from mlm.data.rows.preprocessors import PREPROCESSORS
from mlm.data.tasks import tasks
from mlm.data.tasks.examples import Example
from mlm.data.text import records
from mlm.inference import batching, forward_passes

BATCH_ROWS = 4096  # of a table


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction for a text or a word.

    Attributes:
        label: a class, or the number of a regression.
        probability: of the class; None for a number.
        probabilities: of each class of a text; empty for a number or a word.
    """

    label: str | float
    probability: float | None
    probabilities: dict[str, float] = dataclasses.field(default_factory=dict)


def get_requirement(model) -> str:
    """What a model that predicts no labels would have to be; "": it predicts them."""
    row = LABELLED_OBJECTIVES.get(model.config.objective)
    is_met = row and (row.classifies_texts or row.tags_words or row.label is LabelKind.NUMBER)
    return "" if is_met else "a run that was fine-tuned to classify, regress or tag"


def predict_labels(model, text) -> Any:
    """Implements `LanguageModel.predict`."""
    objective, requirement = model.config.objective, get_requirement(model)
    errors.require(not requirement, "predict", objective, requirement)
    if isinstance(text, str | tuple):
        return predict_labels(model, [text])[0]
    errors.require(isinstance(text, Iterable), "text", text, "a text, or several")
    examples = [make_example(model, one) for one in text]
    encode, column = PREPROCESSORS[objective].encode, LABELLED_OBJECTIVES[objective].word_column
    tokenizer = batching.recognize_masks(model.tokenizer)
    by_example = list(encode(examples, tokenizer, model.config, model.dataset_info.classes))
    sequences = [sequence for example_sequences in by_example for sequence in example_sequences]
    num_truncated = sum(any(sequence.num_truncated for sequence in part) for part in by_example)
    num_unknown = sum(any(UNK in sequence.ids for sequence in part) for part in by_example)
    batching.warn_of_losses(num_truncated, num_unknown, len(by_example), model.config.pack.seq_len)
    num_classes = len(model.dataset_info.classes) if LABELLED_OBJECTIVES[objective].classifies_texts else 0
    predict_batch = forward_passes.compile_pass(compute_predictions, model.model, model.objective, num_classes)

    def run_batch(indices, ids_BxL):
        return predict_batch(model.params, make_batch(model, ids_BxL, [sequences[i] for i in indices]))

    outputs = forward_passes.run_batches(model, [sequence.ids for sequence in sequences], run_batch)
    classes, predictions = model.dataset_info.classes, []
    for sequence, (predicted, score, prob_C) in zip(sequences, outputs, strict=True):
        if column:
            places = np.flatnonzero(np.array(sequence.labels[column]) >= 0)
            predictions.append([Prediction(classes[int(predicted[i])], float(np.exp(score[i]))) for i in places])
        elif classes:
            probabilities = dict(zip(classes, prob_C.tolist(), strict=False))
            predictions.append(Prediction(classes[int(predicted)], float(np.exp(score)), probabilities))
        else:
            predictions.append(Prediction(float(predicted), None))
    if not column:
        return predictions
    windows = iter(predictions)
    return [[word for _ in example_sequences for word in next(windows)] for example_sequences in by_example]


def predict_table(model, path: str, batch_rows: int = BATCH_ROWS) -> Iterator[dict[str, Any]]:
    """The rows of a file of records, all columns kept, with "predicted" and the probability of each class, "p(CLASS)".

    The texts are in the columns that the model was trained on; of a model that names none in `text`, or in the only
    column of texts. A row without a text has no prediction, a tagger's is the tags with spaces between them.

    Raises ConfigError for a file without these columns, with a column of a name that is written, or damaged.
    """
    objective, labelled, requirement = model.config.objective, model.config.data.labelled, get_requirement(model)
    errors.require(not requirement, "predict", objective, requirement)
    tags_words = labels_words(model.config)
    columns = ["" if tags_words else labelled.text_column]
    columns += [labelled.text_pair_column] * (get_text_counts(model.config) == (2,))
    chosen: list[str] = []

    def select(column_types):
        for name in columns:
            is_name = name in column_types or (name and not name.isdecimal())
            wanted = name if is_name else records.DEFAULT_COLUMN
            chosen.append(records.choose_column("predict: text_column", path, wanted, column_types))
        errors.require(len({*chosen}) == len(chosen), path, chosen, "two columns of texts, named as in training")
        return list(column_types)

    classes = model.dataset_info.classes if LABELLED_OBJECTIVES[objective].classifies_texts else ()
    written = {"predicted", *(f"p({name})" for name in classes)}
    rows = records.read_records(path, records.detect_kind(path), select)
    while batch := list(itertools.islice(rows, batch_rows)):
        for name in {name for name in written for _, row in batch if name in row}:
            errors.require(False, f"{path}: column", name, "no column of this name, which is written")
        texts = [tuple(records.parse_text(row.get(name), where) for name in chosen) for where, row in batch]
        found = iter(predict_labels(model, [text[0] if tags_words else text for text in texts if all(text)]))
        for (_, row), text in zip(batch, texts, strict=True):
            one: Any = next(found) if all(text) else None
            label = " ".join(word.label for word in one) if tags_words and one else one and one.label
            yield row | {"predicted": label} | {f"p({name})": one and one.probabilities[name] for name in classes}


def labels_words(cfg: config.Config) -> bool:
    """Whether a fine-tuned model labels each word of a text, not the text."""
    return cfg.objective in LABELLED_OBJECTIVES and bool(LABELLED_OBJECTIVES[cfg.objective].word_column)


def get_text_counts(cfg: config.Config) -> tuple[int, ...]:
    """How many texts an example of a fine-tuned model may have; a Hugging Face folder does not say it."""
    if not cfg.data.task:
        return (1, 2)
    return (2,) if tasks.takes_pairs(cfg.data) else (1,)


def make_example(model, text) -> Example:
    """An example of the task, with a placeholder for its label. text: a text, a pair of texts, or a list of words."""
    classes, has_words = model.dataset_info.classes, labels_words(model.config)
    parts = (text.split() if has_words else (text,)) if isinstance(text, str) else text
    is_text = isinstance(parts, Iterable) and all(isinstance(part, str) for part in parts)
    errors.require(is_text, "text", text, "a text, or texts in it")
    texts = tuple(parts)
    if has_words:
        return Example("", words=texts, label=classes[:1] * len(texts))
    counts = get_text_counts(model.config)
    names = {1: "one text", 2: "a pair of texts"}
    errors.require(len(texts) in counts, "text", text, " or ".join(names[count] for count in counts))
    return Example("", texts=texts, label=classes[0] if classes else 0.0)


def make_batch(model, ids_BxL, sequences) -> types.Batch:
    """A batch with zeros for labels, which the objective reads but does not predict from."""
    tokens = forward_passes.make_tokens(jnp.asarray(ids_BxL))
    position_1xL = jnp.arange(ids_BxL.shape[1])[None]
    second_B = [sequence.second_start for sequence in sequences] + [ids_BxL.shape[1]] * (len(ids_BxL) - len(sequences))
    second_Bx1 = jnp.asarray(second_B)[:, None]
    tokens = tokens._replace(types_BxL=((position_1xL >= second_Bx1) & (tokens.segments_BxL > 0)).astype(jnp.int32))
    abstract = types.abstract_batch(len(ids_BxL), model.dataset_info._replace(seq_len=ids_BxL.shape[1]))
    labels = {name: jnp.zeros(array.shape, array.dtype) for name, array in abstract.labels.items()}
    return types.Batch(tokens, labels, jnp.arange(len(ids_BxL), dtype=jnp.int32))


def compute_predictions(
    model: types.Model, objective: types.Objective, num_classes: int, params, batch: types.Batch
) -> tuple[Any, Any, Any]:
    """(The objective's prediction for each sequence or token, its score, prob_BxC of so many classes of a text)."""
    unused: Any = None  # in evaluation a loss over labels draws nothing

    def compute_loss(batch):
        return objective.loss(params, model, batch, unused, unused, train=False)

    def compute_nats(label):  # the loss of a label is its surprisal
        label_B = jnp.full_like(batch.labels["label_B"], label)
        (nats_B,) = compute_loss(batch._replace(labels=batch.labels | {"label_B": label_B})).loss_B.values()
        return nats_B

    sums, size = compute_loss(batch).sums_B, len(batch.index_B)
    nats_CxB = jax.vmap(compute_nats)(jnp.arange(num_classes)) if num_classes else jnp.zeros((0, size))
    return sums["predicted"], sums["score"], jnp.exp(-nats_CxB.T)
