"""The config: every field of a run with its default, its meaning and what it may be. `mlm config` prints them."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, NoReturn, TypedDict, TypeVar, Unpack, dataclass_transform

from mlm.base.labelled_objectives import TABLE_FORMATS

T = TypeVar("T")
MAX_BEAMS = 1024  # of a beam search


class Bounds(NamedTuple):
    """What a number may be; an open bound is itself excluded."""

    low: float
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def contains(self, value: float) -> bool:
        """Whether a number is within the bounds."""
        above = self.low < value if self.low_open else self.low <= value
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'more than' if self.low_open else 'at least'} {self.low}"
        return f"{self.low} {'<' if self.low_open else '<='} value {'<' if self.high_open else '<='} {self.high}"


# The types of numbers, by their bounds.
Fraction = Annotated[float, Bounds(0, 1)]
FractionAbove0 = Annotated[float, Bounds(0, 1, low_open=True)]
FractionBelow1 = Annotated[float, Bounds(0, 1, high_open=True)]
OpenFraction = Annotated[float, Bounds(0, 1, low_open=True, high_open=True)]
NonNegative = Annotated[float, Bounds(0)]
Positive = Annotated[float, Bounds(0, low_open=True)]
Scale = Annotated[float, Bounds(0, 100)]
RotaryBase = Annotated[float, Bounds(1, 1e12)]
Count = Annotated[int, Bounds(0)]
PositiveInt = Annotated[int, Bounds(1)]
Length = Annotated[int, Bounds(8, 2**16 - 1)]  # tokens
Seed = Annotated[int, Bounds(0, 2**32 - 1)]

# What the fields of one kind of run or model are conditional on.
TEXT, TFDS, TASK, PARALLEL = ({"data.corpus": corpus} for corpus in ("text", "tfds", "task", "parallel"))
ONE_SOURCE = TEXT | {"data.sources": ""}
ROWS_OF_THEIR_OWN = {"data.corpus": ("task", "parallel")}  # corpora whose examples no config.pack.mode packs
TABLE, SQUAD = {"data.labelled.format": TABLE_FORMATS}, {"data.labelled.format": "squad"}
NO_MODIFIERS, NO_PROTAGONIST = {"data.language.modifier_prob": 0.0}, {"data.language.protagonist_prob": 0.0}
NO_SCENES = {"data.language.num_scenes": 0}
NO_MODEL_AS_TEACHER = {"distillation.teacher": ("", "posterior")}
NO_RELATIONS = {"distillation.relation_heads": 0}
ENCODER_DECODER, NO_LOCAL_LAYERS = {"model.family": "encoder_decoder"}, {"model.local_window": 0}
NO_SCALING = {"model.rope_scaling": ""}
ROTARY, WSD, OWN_TOKENIZER = {"model.positions": "rotary"}, {"optim.schedule": "wsd"}, {"tokenizer.path": ""}


class Role(enum.Enum):
    """What a field is to the compiled functions of a run."""

    COMPILED = "compiled"  # they may read it: runs that differ in it have programs of their own
    TRACED = "traced"  # its value reaches them through the hparams alone
    HOST = "host"  # none reads it


COMPILED, TRACED, HOST = Role.COMPILED, Role.TRACED, Role.HOST


class Facts(TypedDict, total=False):
    """What a declaration may say of a field beside its type, default and help.

    The type has the bounds of a number, and the values of a text; a registry, such as OBJECTIVES, says its own. A
    default is always allowed, also beyond these: it may stand for what follows from other fields.
    """

    when: Mapping[str, Any]  # a run reads it only if these fields have these values, or one of a tuple's,
    unless: Mapping[str, Any]  # and these fields have none of these; else it has its default
    role: Role  # COMPILED where nothing is said
    affects_result: bool  # whether it is part of the fingerprint; True where nothing is said
    is_path: bool  # a `~` at its start is the home folder
    path_sha256: str  # the field with a digest of what its path names: where that is set, the path changes no result


def field(default: T, help: str, **facts: Unpack[Facts]) -> T:
    """A field with its help text (what the value means, its unit and its choices) and all else that is true of it."""
    return dataclasses.field(default=default, metadata={"help": help, **facts})


def later(default: T, help: str, **facts: Unpack[Facts]) -> T:
    """A field that came later than its section's digests: `repr`, which they read, leaves it out."""
    return dataclasses.field(default=default, repr=False, metadata={"help": help, **facts})


def setting(default: T, help: str, **facts: Unpack[Facts]) -> T:
    """A field that is not part of the fingerprint: it changes no result, or the run records what it brings in apart."""
    facts["affects_result"] = False
    return field(default, help, **facts)


def subsection(cls: type[T], **facts: Unpack[Facts]) -> T:
    """A section as a field of another; the facts are true of each field in it."""
    return dataclasses.field(default_factory=cls, metadata=facts)


@dataclass_transform(frozen_default=True)
def section(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass of config fields. An assignment raises an error that says what to do instead."""

    def refuse(self: object, name: str, value: Any = None) -> NoReturn:
        raise dataclasses.FrozenInstanceError(
            f"config field {name} of {cls.__name__}: a config never changes; mlm.base.fields.override makes a changed "
            'copy, such as override(config, {"mask.rate": 0.4})'
        )

    frozen = dataclasses.dataclass(frozen=True)(cls)
    frozen.__setattr__ = frozen.__delattr__ = refuse
    return frozen


@section
class Language:
    """The built-in language: how many documents, and how hard they are to predict."""

    train_documents: PositiveInt = field(20_000, "number of training documents; each becomes one example")
    validation_documents: PositiveInt = field(1_000, "number of held-out documents")
    seed: Seed = field(0, "random seed of the documents; use the same one in all runs that you compare")
    max_words: Annotated[int, Bounds(8)] = field(
        0, "longest document, in words; it ends with a full sentence. 0: what fits pack.seq_len"
    )
    num_topics: Annotated[int, Bounds(1, 8)] = field(8, "number of topics; each document has one")
    num_names: Annotated[int, Bounds(1, 24)] = field(24, "number of names; each document has one as its protagonist")
    zipf_exponent: Scale = field(1.0, "word frequency is proportional to rank^-exponent in each word class; 0: uniform")
    word_order_prob: Fraction = field(1.0, "probability that a word has the class that its position asks for")
    agreement_prob: Fraction = field(1.0, "probability that a verb agrees with its subject in number")
    modifier_prob: FractionBelow1 = field(0.6, "probability that a phrase or relative clause follows a subject")
    modifier_continue_prob: FractionBelow1 = field(0.45, "probability of one more modifier", unless=NO_MODIFIERS)
    attractor_prob: Fraction = field(
        0.5, "probability that a noun in a modifier differs from the subject's number", unless=NO_MODIFIERS
    )
    topic_strength: Scale = field(3.0, "log-probability bonus, in nats, of a topic's own nouns and verbs; 0: no effect")
    protagonist_prob: FractionBelow1 = field(0.4, "probability that a subject is a name; half of it in other positions")
    recall_prob: Fraction = field(0.9, "probability that a name is the protagonist's, not any", unless=NO_PROTAGONIST)
    vocab_size: Annotated[int, Bounds(500, 50_000)] = later(
        0, "number of words, made-up ones behind those of the small lexicon; 0: that lexicon alone, of 431 words"
    )
    num_favorites: Annotated[int, Bounds(1, 64)] = later(
        0,
        "favorite words that a document has of each kind (noun, verb, adjective, adverb, name), of nouns and verbs in "
        "each topic; 0: a protagonist alone",
    )
    favorite_prob: FractionBelow1 = later(
        0.3,
        "probability that a word is the favorite of its field, not any; recall_prob: that of names",
        unless={"data.language.num_favorites": 0},
    )
    ambiguity_prob: FractionBelow1 = later(
        0.0, 'probability that a noun or a verb is a form that nouns and verbs share, as "runs"'
    )
    num_scenes: Annotated[int, Bounds(2, 16)] = later(
        0, "scenes: each sentence has one, which has nouns and verbs of its own; 0: none"
    )
    scene_prob: Fraction = later(0.8, "probability that a noun or a verb is the scene's, not any", unless=NO_SCENES)
    scene_keep_prob: Fraction = later(
        0.8, "probability that the next sentence keeps the scene, not any", unless=NO_SCENES
    )
    morphology: Annotated[str, "fused", "split"] = later(
        "", "endings of nouns and verbs by declension: fused (one word) | split (stem and ending are words); empty: -s"
    )
    num_declensions: Annotated[int, Bounds(2, 4)] = later(
        3, "declensions of nouns and conjugations of verbs", unless={"data.language.morphology": ""}
    )


@section
class Labelled:
    """How the files of a task are read. An empty field has the task's own value (mlm/data/tasks/task_specs.toml)."""

    format: str = field(
        "", "file format: tsv | csv | jsonl | parquet | arrow | conll (a token a line) | conllu | squad | tfds"
    )
    train: str = field("", 'training file in task_path; tfds: a split, such as "train[:90%]"')
    dev: str = field("", "like train: the development split, which selects hyperparameters")
    test: str = field("", "like train: the test split; empty: none")
    text_column: str = field(
        "", "column of the (first) text, by header name or number from 0; conll, conllu: of the token", unless=SQUAD
    )
    text_pair_column: str = field(
        "", "column of a pair's second text; multiple_choice: of the text before the endings; empty: none", when=TABLE
    )
    negative_column: str = field(
        "",
        "contrastive: column of a text that does not go with the first one, though it seems to; empty: none",
        when={"objective": "contrastive"},
        unless={"data.labelled.text_pair_column": ""},
    )
    choice_columns: str = field(
        "", "multiple_choice: columns of endings, with commas", when={"objective": "multiple_choice"}
    )
    label_column: str = field("", "column of the label or number; conll, conllu: of the tag", unless=SQUAD)
    head_column: str = field(
        "",
        "conllu, edge_probing: column with the number of a word's head, 0: none; empty: labels of single words",
        when={"data.labelled.format": "conllu", "objective": "edge_probing"},
    )
    id_column: str = field("", "column that names an example in predictions; empty: its number from 0", when=TABLE)
    quoting: Annotated[str, "on", "off"] = field(
        "",
        'tsv, csv: on ("..." may contain delimiters and line ends) | off; empty: off for tsv, on for csv',
        when={"data.labelled.format": ("tsv", "csv")},
    )
    scheme: Annotated[str, "bio", "iob1"] = field(
        "",
        "span encoding of tags: bio | iob1 (converted to bio); empty: tags are independent of each other",
        when={"data.labelled.format": ("conll", "conllu"), "objective": "tagging"},
    )
    labels: str = field(
        "",
        "labels in order, separated by commas; empty: the train split's labels, sorted (multiple_choice: 0, 1, ...); "
        "contrastive: those of the rows to read, such as entailment; empty: all rows",
        when={"objective": ("classification", "multiple_choice", "tagging", "edge_probing", "contrastive")},
    )
    scores: str = field(
        "", "accuracy | f1 | matthews | pearson | spearman | exact, with commas; the first selects; empty: objective's"
    )
    doc_stride: Count = field(
        0,
        "squad, conll, conllu: tokens between the starts of two windows of a passage or sentence that is longer than "
        "one; 0: half of a window, for squad at most 128",
        when={"objective": ("extractive_qa", "tagging", "edge_probing")},
    )


@section
class ParallelText:
    """Which files of data.parallel_path hold pairs of a text and its translation, one pair a line or a row."""

    source: str = field(
        "", 'suffix of the source language\'s files, such as "en" of train.en; its column where train is a file of rows'
    )
    target: str = field("", 'like source, such as "de"; both empty: one file with source, tab and target on a line')
    train: str = field("train", "training files, without the suffixes; or a file of rows, such as train.parquet")
    dev: str = field("val", "held-out files, as train")
    test: str = field("", "test files, as train; empty: none")


@section
class Data:
    """What a run reads: a text corpus, a labelled task, or parallel texts."""

    corpus: Annotated[str, "text", "tfds", "docstrings", "language", "task", "parallel", "auto"] = field(
        "auto",
        "text (files) | tfds (TensorFlow Datasets) | docstrings (of Python's standard library) | language (built-in, "
        "whose floor is known) | task (labelled examples) | parallel (texts and translations) | auto: what data.task, "
        "data.parallel_path, data.sources or data.path asks for, else language",
    )
    sources: str = field(
        "", "text: corpus file (TOML) of sources, weights and phases, in place of data.path", when=TEXT, is_path=True
    )
    path: str = field(
        "",
        "text: files, folders and globs, separated by commas: text, or rows of .jsonl, .json, .csv, .tsv, .parquet and "
        ".arrow; others also as .gz, .zst, .bz2, .xz; also on a bucket (gs://, s3://), and hf:datasets/ORG/NAME",
        when=ONE_SOURCE,
    )
    validation_path: str = field("", "text: held-out files, as path; empty: validation_fraction of it", when=ONE_SOURCE)
    text_column: str = field(
        "text",
        "text: the column of the documents in files of rows; where it is missing, the only one of texts",
        when=TEXT,
        unless={"pack.mode": "stream"},
    )
    id_column: str = field(
        "",
        "text: column that names a row's document in files of rows; rows of one name are held out together",
        when=TEXT,
        unless={"pack.mode": "stream"},
    )
    word_separator: str = field(
        "", "text: character between words of a script without spaces; read as a space", when=TEXT
    )
    document_boundary: str = field(
        "file",
        "text: where a document ends: file (one document a file) | line (one a line) | blank_line | a regular "
        'expression that matches the first line of a document, such as " = [^=]+ = " for WikiText\'s titles',
        when=TEXT,
        unless={"pack.mode": "stream"},
    )
    tfds_name: str = field("", 'tfds: name of the data set, such as "lm1b" or "wiki40b/en"', when=TFDS)
    tfds_dir: str = field(
        "",
        "tfds: folder of the prepared data sets; empty: the library's default",
        when={"data.corpus": ("tfds", "task"), "data.labelled.format": ("tfds", "")},
    )
    tfds_field: str = field("text", "tfds: feature that holds the text", when=TFDS)
    validation_fraction: OpenFraction = field(
        0.05,
        "share of the documents (pack.mode=stream: of the characters) held out where the corpus has no such split",
        when={"data.corpus": ("text", "tfds", "docstrings"), "data.validation_path": ""},
    )
    search_fraction: FractionBelow1 = field(
        0.0,
        "share of the train split that is held out in place of the held-out split, for mlm sweep search; 0: none",
        when={"data.corpus": ("text", "tfds", "docstrings")},
    )
    task: str = field("", 'task: a name in data/tasks/task_specs.toml, or "own": data.labelled describes it', when=TASK)
    task_path: str = field("", 'task: folder of its files; tfds: name of the data set, such as "glue/sst2"', when=TASK)
    parallel_path: str = field("", "parallel: folder of files; empty: pairs of the built-in language", when=PARALLEL)
    cache_dir: str = setting("runs/cache", "folder of tokenizers and packed examples that all runs share", is_path=True)
    language: Language = subsection(
        Language, when={"data.corpus": ("language", "task", "parallel"), "data.parallel_path": ""}
    )
    labelled: Labelled = subsection(Labelled, when=TASK)
    parallel: ParallelText = subsection(ParallelText, when=PARALLEL, unless={"data.parallel_path": ""})


@section
class Tokenizer:
    """The tokenizer and its vocabulary."""

    kind: Annotated[str, "unigram", "wordpiece", "bpe", "words", "characters"] = field(
        "",
        "unigram (SentencePiece) | wordpiece (BERT) | bpe (byte-level, GPT-2) | words | characters; empty: words for "
        "the built-in language, else unigram",
        when=OWN_TOKENIZER,
    )
    vocab_size: Annotated[int, Bounds(6)] = field(
        0, "size, with 5 special tokens; 0: all words of the language or characters, else 8192", when=OWN_TOKENIZER
    )
    sample_characters: Annotated[int, Bounds(1000)] = field(
        2**26, "characters that it is learnt from, at most: a uniform sample of the text", when=OWN_TOKENIZER, role=HOST
    )
    path: str = setting("", "folder of a trained tokenizer, such as a run's directory; empty: train one", is_path=True)
    new_words: Count = field(
        0,
        "number of the most frequent words of the text that a folder's byte-level BPE gets as further entries",
        unless={"tokenizer.path": "", "data.corpus": "task"},
        role=HOST,
    )


@section
class Pack:
    """How tokens become examples of one length."""

    mode: Annotated[str, "full_sentences", "doc_sentences", "segment_pair", "stream"] = field(
        "",
        "full_sentences (RoBERTa: full, across documents) | doc_sentences (within one document) | segment_pair (BERT: "
        "two segments) | stream (GPT: running text, no special tokens); empty: doc_sentences for the built-in "
        "language, else full_sentences",
        unless=ROWS_OF_THEIR_OWN,
    )
    seq_len: Length = field(128, "sequence length in tokens; multiple_choice, contrastive: of each choice or text")
    shard_mb: NonNegative = field(
        0.0,
        "text: MB of files in a shard, which is packed on its own; 0: a corpus of up to 1024 MB is one, a larger one "
        "has shards of 256 MB",
        when=TEXT,
        unless={"pack.mode": "stream"},
        role=HOST,
    )
    source_len: Length = field(0, "parallel: tokens of a source; 0: as seq_len", when=PARALLEL)
    isolate_documents: bool = field(
        True,
        "documents packed into one sequence do not see each other (attention, recurrent state, window)",
        unless=ROWS_OF_THEIR_OWN,
        when={"pack.mode": "full_sentences"},
    )
    short_seq_prob: Fraction = field(
        0.0,
        "segment_pair: probability that a document gives pairs of a shorter, random length; BERT: 0.1",
        unless=ROWS_OF_THEIR_OWN,
        when={"pack.mode": "segment_pair"},
    )


@section
class Mask:
    """Which tokens are masked, and what replaces them."""

    rate: OpenFraction = field(
        0.15, "masking rate: share of an example's tokens; with a schedule, at first", role=TRACED
    )
    schedule: Annotated[str, "constant", "linear", "cosine"] = field(
        "constant", "masking rate over train.steps: constant | linear | cosine (half a period)", role=TRACED
    )
    final_rate: FractionBelow1 = field(
        0.0, "linear, cosine: rate one step after the last", when={"mask.schedule": ("linear", "cosine")}, role=TRACED
    )
    max_rate: OpenFraction = setting(
        0.0,
        "highest masking rate of the compiled step; 0: the higher of rate and final_rate. Runs with the same one share "
        "a program, but each spends the output layer's compute for this rate",
    )
    predict_rate: Fraction = field(0.0, "share of an example's tokens that is predicted; 0: all masked")
    masks_per_example: PositiveInt = field(
        0, "disjoint masks of an example in a step, each with a pass; 0: predict_rate / rate, rounded up"
    )
    static_masks: Count = field(0, "fixed masks of an example, in turn by epoch; 0: new masks each step", role=TRACED)
    unit: Annotated[str, "token", "word", "span"] = field(
        "token", "training: token | word | span (1 to 10 words, mean 3.8, as SpanBERT); evaluation: eval.mask_unit"
    )
    mask_token_prob: Fraction = field(0.8, "probability that a masked token is replaced by [MASK]", role=TRACED)
    random_token_prob: Fraction = field(0.1, "probability that a random token replaces it; the rest stay", role=TRACED)
    random_token_from: Annotated[str, "unigram", "uniform"] = field(
        "unigram", "random tokens: unigram (frequent as in the train split) | uniform"
    )
    mask_unk: bool = field(False, "training may mask [UNK], as BERT's code does; evaluation never masks it")


@section
class Hybrid:
    """Objective hybrid: how masked and causal examples are mixed."""

    causal_fraction: Fraction = field(0.0625, "share of a batch's examples that are causal, not masked", role=TRACED)
    causal_first_fraction: Fraction = field(0.0, "share of steps at the start with causal examples alone", role=TRACED)


@section
class Distillation:
    """Objective mlm: what training predicts in place of the masked tokens, or beside them."""

    teacher: str = field(
        "",
        "whose probabilities of a masked token are the target in training: posterior (the exact ones of the built-in "
        "language) | the directory of a run, or a Hugging Face folder, of a masked language model with the same "
        "vocabulary; empty: the token itself",
        role=COMPILED,
        is_path=True,
        path_sha256="distillation.teacher_sha256",
    )
    teacher_sha256: str = field(
        "",
        "expected SHA-256 of the teacher's checkpoint or folder; empty: any (a run records what it found)",
        role=HOST,
    )
    temperature: Positive = field(
        1.0,
        "divides the logits of teacher and student in the soft loss, which it multiplies by its square (Hinton et al. "
        "2015; DistilBERT: 2)",
    )
    soft_weight: NonNegative = field(
        1.0, "weight of the soft loss, the cross-entropy with the teacher's probabilities (DistilBERT: 5)"
    )
    hard_weight: NonNegative = field(
        0.0, "weight of the hard loss, that of the masked tokens themselves (DistilBERT: 2)"
    )
    hidden_weight: NonNegative = field(
        0.0,
        "weight of 1 minus the cosine of the last states of student and teacher, over all tokens; their widths are "
        "equal (DistilBERT: 1)",
    )
    relation_heads: Count = field(
        0,
        "heads of attention's relations: how alike the queries of two tokens are, and their keys and values; a divisor "
        "of the widths of teacher and student, whose last layer learns them (MiniLMv2: 48, or 64); 0: no relations",
        role=COMPILED,
        when={"model.family": "transformer"},
    )
    relation_layer: Count = field(
        0,
        "layer of the teacher whose relations these are, from 1 (MiniLMv2: 21 of BERT-large's 24); 0: the last",
        role=COMPILED,
        unless=NO_RELATIONS,
    )
    relation_weight: NonNegative = field(
        1.0,
        "weight of the divergence of the student's relations from the teacher's, over all tokens (MiniLMv2: alone)",
        unless=NO_RELATIONS,
    )


@section
class ReplacedTokenDetection:
    """Objective replaced_token_detection (ELECTRA): its generator."""

    generator_size: FractionAbove0 = field(0.25, "its width, heads and hidden units, as a share of the discriminator's")
    discriminator_weight: NonNegative = field(50.0, "weight of the discriminator's loss; generator's: 1", role=TRACED)
    temperature: Positive = field(1.0, "divides the generator's logits before it samples", role=TRACED)
    embeddings: Annotated[str, "separate", "shared", "disentangled"] = field(
        "separate",
        "its tables of tokens, positions and types: separate (its own) | shared (the discriminator's, as ELECTRA) | "
        "disentangled (shared, but the discriminator's loss moves a difference of its own alone, as DeBERTaV3)",
    )


@section
class Contrastive:
    """Objective contrastive: how the embeddings of a batch's texts are compared."""

    temperature: Positive = field(0.05, "divides the cosines before the softmax over texts (SimCSE: 0.05)", role=TRACED)
    matryoshka_dims: tuple[PositiveInt, ...] = field(
        (),
        "how many of an embedding's first numbers are trained to be one as well; the loss is the mean over these and "
        "the whole (Kusupati et al. 2022)",
    )


@section
class Model:
    """The architecture and its size."""

    family: str = field(
        "transformer", "feedforward | rnn | transformer | mixer | encoder_decoder (reads a source text)"
    )
    cell: str = field(
        "",
        "rnn: lstm | gru | elman | mingru | minlstm | rglru | ssd; feedforward: window | bag; mixer: conv | gmlp | "
        "fnet; encoder_decoder: transformer | gru",
    )
    size: str = field("tiny", "named size (SIZES in mlm/models/__init__.py); it sets the size fields below that are 0")
    num_layers: PositiveInt = field(0, "number of layers, of each side of an encoder_decoder; 0: from model.size")
    num_unique_layers: Count = field(
        0,
        "layers with parameters of their own, run in turn until num_layers have run (1: ALBERT, Lan et al. 2020; "
        "more: a looped model); 0: num_layers",
    )
    width: PositiveInt = field(0, "hidden size: width of embeddings and layer outputs; 0: from model.size")
    embedding_dim: Count = field(
        0, "width of embeddings and output table, projected to model.width and back (ALBERT, ELECTRA); 0: model.width"
    )
    mlp_dim: PositiveInt = field(0, "units of the MLP (gated: of each half); 0: from model.size (gated: two thirds)")
    rnn_dim: PositiveInt = field(0, "rnn: recurrent units of each direction; 0: from model.size")
    state_dim: PositiveInt = field(0, "ssd: entries of the state of each recurrent unit; 0: from model.size")
    num_heads: PositiveInt = field(0, "transformer: number of attention heads; 0: from model.size")
    window: PositiveInt = field(
        0, "neighbors on each side; feedforward, causal or mixed: on the left with the token itself; 0: from model.size"
    )
    directionality: Annotated[str, "bidirectional", "causal", "two_stack", "mixed"] = field(
        "",
        "which tokens a state sees: bidirectional (all) | causal (up to itself) | two_stack (a stack for each side, as "
        "ELMo) | mixed (bidirectional or causal, by example); empty: what the objective needs",
    )
    chrono_init: Count = field(
        -1,
        "gru, lstm, mingru, minlstm: gates remember at first for 1 to so many tokens (Tallec & Ollivier 2018); 0: no; "
        "-1: by width",
        when={"model.bias": "all"},
    )
    norm: Annotated[str, "layernorm", "rmsnorm"] = field(
        "layernorm", "layernorm | rmsnorm (no mean, no bias; Zhang & Sennrich 2019)"
    )
    norm_placement: Annotated[str, "pre", "post", "sandwich"] = field(
        "pre",
        "norms pre (before each sublayer, and at the end) | post (after each residual connection, as BERT) | sandwich "
        "(as pre, and after each sublayer; Ding et al. 2021, Gemma 2)",
    )
    norm_eps: FractionAbove0 = field(1e-6, "epsilon of the norms, added to the variance")
    first_norm: bool = field(
        True,
        "a norm before the first layer's first sublayer; false: the embeddings' serves (ModernBERT)",
        when={"model.norm_placement": ("pre", "sandwich"), "model.embed_norm": True},
    )
    embed_norm: bool = field(True, "apply a norm to the embeddings, as BERT does", unless=ENCODER_DECODER)
    bias: Annotated[str, "all", "norms", "output", "none"] = field(
        "all",
        "what has biases: all | norms (norms, and dense layers before and after the layers; none in attention, MLP and "
        "recurrence) | output (one for each entry of the vocabulary alone, as ModernBERT) | none",
    )
    activation: Annotated[str, "gelu", "gelu_tanh", "relu", "relu2", "geglu", "swiglu"] = field(
        "gelu",
        "activation of the MLP: gelu | gelu_tanh (tanh approximation, as GPT-2) | relu | relu2 (squared; So et al. "
        "2021) | geglu | swiglu (gated: a third matrix; Shazeer 2020); not for rnn",
    )
    layer_scale: Scale = field(0.0, "initial learned factor of a sublayer's outputs (Touvron et al. 2021); 0: none")
    qk_norm: bool = field(
        False, "transformer: a norm over each head's queries and keys (Henry et al. 2020; Dehghani et al. 2023)"
    )
    attention_gate: bool = field(
        False, "transformer: a sigmoid of the attention's input multiplies each head's output (Qiu et al. 2025)"
    )
    lm_head: Annotated[str, "bert", "linear"] = field(
        "bert",
        "output layer: bert (dense, activation, norm, table, bias) | linear (table; with model.bias=output bias)",
        unless=ENCODER_DECODER,
    )
    lm_head_activation: Annotated[str, "gelu", "gelu_tanh", "relu"] = field(
        "gelu",
        "activation of the output layer's dense layer, as model.activation; BERT's is that of its MLP",
        unless=ENCODER_DECODER,
        when={"model.lm_head": "bert"},
    )
    tie_embeddings: bool = field(True, "the output layer uses the embeddings' table", unless=ENCODER_DECODER)
    positions: Annotated[str, "learned", "sinusoidal", "rotary", "alibi", "relative", "disentangled"] = field(
        "",
        "position encoding: learned | sinusoidal | rotary | alibi (Press et al. 2022, on both sides) | relative (32 "
        "learned biases, Raffel et al. 2020) | disentangled (DeBERTa, He et al. 2021); empty: rotary, or learned where "
        "the model reads a source",
    )
    position_buckets: Annotated[int, Bounds(2)] = field(
        256,
        "disentangled: embeddings of the distances on each side, half of them of one distance each, the others' ranges "
        "growing up to max_positions (DeBERTaV2)",
        when={"model.positions": "disentangled"},
    )
    relative_bias: bool = field(
        False,
        "transformer: the biases of positions=relative beside other positions (MPNet, Song et al. 2020)",
        unless={"model.positions": ("relative", "disentangled")},
    )
    rope_theta: RotaryBase = field(10_000.0, "rotary: base of the angles", when=ROTARY)
    rope_scaling: Annotated[str, "", "linear", "ntk", "yarn"] = field(
        "",
        "rotary, to read longer examples than a model was trained on, in layers that see all tokens: linear (positions "
        "divided by rope_factor, Chen et al. 2023) | ntk (a larger base) | yarn (slow angles divided, sharper "
        "attention; Peng et al. 2023); empty: none",
        when=ROTARY,
    )
    rope_factor: Annotated[float, Bounds(1, 4096)] = field(
        0.0, "rope_scaling: how many times longer; 0: pack.seq_len / rope_original_len", when=ROTARY, unless=NO_SCALING
    )
    rope_original_len: Annotated[int, Bounds(8)] = field(
        0, "rope_scaling: tokens of an example before; 0: those of init.run or init.hub", when=ROTARY, unless=NO_SCALING
    )
    local_window: Count = field(
        0, "transformer: window of local attention in tokens, half on each side (Beltagy et al. 2020); 0: none"
    )
    global_every: Count = field(
        3, "local_window: one of so many layers, the first among them, sees all tokens; 0: none", unless=NO_LOCAL_LAYERS
    )
    global_layers: tuple[PositiveInt, ...] = field(
        (), "local_window: numbers from 1 of layers that see all tokens; empty: as global_every", unless=NO_LOCAL_LAYERS
    )
    local_rope_theta: Annotated[float, Bounds(0, 1e12)] = field(
        0.0, "local_window: rope_theta of local layers; 0: as the others'", when=ROTARY, unless=NO_LOCAL_LAYERS
    )
    max_positions: PositiveInt = field(512, "transformer, gmlp, fnet: longest sequence, in tokens")
    type_vocab_size: Count = field(2, "token types (segment embeddings); 0: none", unless=ENCODER_DECODER)
    dropout: FractionBelow1 = field(
        -1.0, "rate in embeddings, sublayers and task heads; -1: 0 up to width 128, else and for encoder_decoder 0.1"
    )
    attention_dropout: FractionBelow1 = field(-1.0, "transformer: dropout rate of the attention weights; -1: dropout's")
    init_std: Scale = field(
        -1.0,
        "standard deviation of the initial weights before they are cut at two of it (then 0.88 of it; recurrent "
        "matrices are orthogonal); 0: 1/sqrt(fan_in), of embeddings 1/sqrt(rows); -1: 0.08 up to width 128, else and "
        "for encoder_decoder 0.02",
    )
    depth_scaled_init: bool = field(
        False, "the last matrix of a sublayer starts with init_std / sqrt(2 * num_layers) (Shoeybi et al. 2019)"
    )
    dtype: Annotated[str, "float32", "bfloat16"] = field(
        "float32", "dtype of products, on accelerators of all activations: float32 | bfloat16; parameters are float32"
    )
    scan_unroll: Count = field(0, "layers unrolled in a step of the scan over them; 0: all (fast), 1: none")
    rnn_unroll: PositiveInt = field(1, "rnn: tokens unrolled in an iteration of the scan over a sequence")
    remat: bool = setting(False, "recompute activations (jax.checkpoint): less memory, up to a third more compute")
    remat_policy: Annotated[str, "all", "dots", "attention"] = setting(
        "all", "recomputed: all | dots (all but products) | attention (from the scores on)", when={"model.remat": True}
    )
    kernels: str = setting(
        "auto",
        "kernels of mlm/models/platform_kernels.py, with commas; reference: none; auto: the faster ones on this "
        "platform, which the run records and keeps",
    )


@section
class Optim:
    """The optimizer and its schedule."""

    optimizer: str = field(
        "adamw", "adamw | stable_adamw (updates clipped as by Adafactor) | lamb | lion | adafactor | muon (of matrices)"
    )
    learning_rate: Positive = field(
        0.0,
        "peak learning rate, adafactor's relative to each tensor's size; 0: by cell, width, optimizer and start "
        "(mlm/training/run/default_recipe.py)",
        role=TRACED,
    )
    schedule: Annotated[str, "linear", "cosine", "wsd", "constant", "inverse_sqrt"] = field(
        "linear", "learning rate after the warm-up: linear | cosine | wsd (decay at the end) | constant | inverse_sqrt"
    )
    warmup_fraction: Fraction = field(-1.0, "share of the steps with warm-up; -1: by family, width and start")
    decay_fraction: Fraction = field(0.1, "wsd: share of the steps, at the end, with a decay", when=WSD)
    decay_shape: Annotated[str, "linear", "one_minus_sqrt"] = field(
        "linear", "wsd: linear | one_minus_sqrt (1 minus the root of the share that is over)", when=WSD
    )
    final_lr_fraction: Fraction = field(
        0.0,
        "linear, cosine, wsd: share of the peak one step after the last",
        unless={"optim.schedule": ("constant", "inverse_sqrt")},
    )
    b1: FractionBelow1 = field(0.9, "beta1, decay of the first moment; lion: its share in an update; muon: of AdamW")
    b2: FractionBelow1 = field(
        0.98, "beta2, decay of the second moment; lion: of its momentum (Chen et al. 2023: 0.99); muon: of AdamW"
    )
    eps: Positive = field(1e-6, "epsilon, added to the root of the second moment (You et al. 2020, lamb: 1e-6)")
    muon_momentum: FractionBelow1 = field(0.95, "muon: decay of the momentum that it orthogonalizes")
    weight_decay: NonNegative = field(0.01, "weight decay, times the learning rate, of decay_groups", role=TRACED)
    decay_groups: str = field(
        "matrices,embeddings",
        "what has weight decay, with commas: matrices | embeddings | vectors (biases and norms; BERT: all but these)",
    )
    clip_norm: NonNegative = field(1.0, "gradients are clipped to this global norm; 0: no clipping")
    label_smoothing: FractionBelow1 = field(
        0.0, "causal, denoising: share of a target's probability that training spreads over the vocabulary"
    )
    z_loss: NonNegative = field(0.0, "weight of the logits' squared log-sum-exp in training (PaLM, GPT-BERT: 1e-4)")
    loss_reduction: Annotated[str, "token", "sequence"] = field(
        "token", "training loss: token (mean over a batch's predictions) | sequence (over an example's, then examples)"
    )
    average_checkpoints: Count = field(0, "final parameters are the mean of the last so many checkpoints; 0: no mean")
    average_every: PositiveInt = field(
        100, "steps between averaged checkpoints", unless={"optim.average_checkpoints": 0}
    )
    ema_decay: FractionBelow1 = field(
        0.0, "decay of a moving average of the parameters, which all but training reads (GPT-BERT: 0.999); 0: none"
    )


@section
class Init:
    """The model that training starts from. The objective's own head is new, except for BERT's pooler."""

    run: str = setting("", "directory of a run, whose newest checkpoint it is; empty: random parameters", is_path=True)
    run_sha256: str = field(
        "", "expected SHA-256 of that checkpoint; empty: any (a run records what it found)", unless={"init.run": ""}
    )
    hub: str = setting(
        "", "in place of run: Hugging Face folder, or hf:ORG/NAME to download; empty: none", is_path=True
    )
    hub_sha256: str = field("", "expected SHA-256 of config, weights, vocabulary; empty: any", unless={"init.hub": ""})
    positions: Annotated[str, "", "interpolate", "tile"] = field(
        "",
        "learned positions for another model.max_positions than the source's: interpolate (read in between) | tile "
        "(from the start again, as Longformer); empty: as many as there",
    )
    new_vocabulary: bool = field(
        False,
        "the tokenizer may be another than the source's: its entry keeps the embedding that the source has of the same "
        "text, else it gets what new_entries says",
    )
    new_entries: Annotated[str, "pieces", "normal"] = field(
        "pieces",
        "new_vocabulary: the embedding of another entry: pieces (the mean of those of its text's tokens there) | "
        "normal (drawn around the mean of all, with 1e-5 of their covariance; Hewitt 2021)",
        when={"init.new_vocabulary": True},
    )
    layers: Annotated[str, "", "first", "spread"] = field(
        "",
        "those of the source that a model of fewer model.num_layers has: first (the first so many) | spread (evenly "
        "spaced, from the first on; DistilBERT); empty: as many as there",
    )
    embedding_steps: Count = field(
        0,
        "steps at the start that train the embeddings of tokens, and the output layer's table and biases, alone "
        "(Artetxe et al. 2020)",
        role=COMPILED,
    )


@section
class Finetune:
    """What is fine-tuned, how fast, and what the task's head reads."""

    trainable_layers: Annotated[int, Bounds(-1)] = field(
        -1, "what is trained: -1: all | k: the last k layers and the heads | 0: the task's head alone, without dropout"
    )
    layerwise_lr_decay: FractionAbove0 = field(
        1.0, "factor of the learning rate from the heads to the last layer, and from layer to layer below; 1: none"
    )
    pooling: Annotated[str, "first", "last", "mean"] = field(
        "",
        "an example's vector: first (first token's state through a pooler, as BERT) | last (last token's) | mean (over "
        "tokens); empty: last where a state sees one side alone, else first for a Transformer, and mean; contrastive "
        "has no pooler, and mean for empty",
    )
    pooler: Annotated[str, "bert", "electra", "distilbert", "modernbert"] = field(
        "bert",
        "layer between that vector and the label's: bert (dense, tanh; pooling first and last) | electra (dense, GELU; "
        "as bert) | distilbert (dense, ReLU; as bert) | modernbert (dense, model.lm_head_activation, norm; biases as "
        "model.bias says; with every pooling, and of each token in tagging and extractive_qa)",
    )
    layer_features: str = field(
        "last",
        "what the head reads: last | second_to_last | a layer's number, 0 for the embeddings | concat4 (last four "
        "concatenated) | sum4 (learned weighted sum of these) | mix (of all but the embeddings)",
    )
    head: Annotated[str, "linear", "bilstm"] = field("linear", "tagging: linear | bilstm (two layers, linear on top)")
    head_dim: PositiveInt = field(768, "head bilstm: units of each direction", when={"finetune.head": "bilstm"})
    max_layer: Annotated[int, Bounds(-1)] = field(-1, "edge_probing: the highest layer of the mix; -1: the last")


@section
class Downstream:
    """Tasks that the model is fine-tuned on when its training ends: a grid for each, selected on the dev split."""

    tasks: str = setting("", "tasks of mlm/data/tasks/task_specs.toml, with commas; empty: none")
    path: str = setting("", "folder with one folder of files for each task, of the task's name", is_path=True)
    learning_rates: tuple[Positive, ...] = setting((), "to try; empty: by size (mlm/training/run/finetuning_recipe.py)")
    epochs: tuple[Positive, ...] = setting((3.0,), "numbers of epochs to try")
    batch_sizes: tuple[PositiveInt, ...] = setting((32,), "batch sizes to try")
    seeds: Annotated[int, Bounds(1, 10_000)] = setting(1, "number of random seeds for each point of the grid")
    variants: str = setting(
        "",
        "settings to compare, with commas, each a column of the table: fields as NAME=VALUE separated by spaces; "
        "from_scratch: random initial parameters; empty: the plain recipe",
    )


@section
class Train:
    """How long a run trains, and what it does meanwhile."""

    steps: PositiveInt = field(1000, "number of updates")
    batch_size: PositiveInt = field(32, "examples of an update, over all devices")
    group_by_length: bool = field(True, "tasks: eight batches are sorted by length, to pad less", when=TASK, role=HOST)
    grad_accum_steps: PositiveInt = field(1, "gradient accumulation: number of microbatches that a batch is split into")
    batch_warmup_fraction: Fraction = field(
        0.0,
        "share of the steps, at the start, in which the batch grows linearly to batch_size, by whole microbatches of "
        "grad_accum_steps; 0: none",
    )
    initial_batch_fraction: FractionAbove0 = field(
        0.25, "share of batch_size in the first step, in microbatches", unless={"train.batch_warmup_fraction": 0.0}
    )
    eval_every: Count = setting(0, "steps between evaluations; 0: only at the end", role=HOST)
    checkpoint_every: PositiveInt = setting(500, "steps between checkpoints", role=HOST)
    milestones: str = setting(
        "",
        "when parameters are kept for good: log:24 (so many, evenly spaced in the step's logarithm) | steps (100,1000) "
        "| words read with repetitions (500kw,1Mw) | babylm (1, 2, ... 10, 20, ... 100, 200, ... million words); "
        "empty: never",
        role=HOST,
    )
    log_every: PositiveInt = setting(50, "steps between log lines", role=HOST)
    profile: str = setting("", "STEP:STEPS, such as 100:5: JAX's profiler traces so many steps from it on", role=HOST)
    trackers: str = setting("tensorboard", "also log to, with commas: tensorboard | wandb | mlflow", role=HOST)


@section
class Phases:
    """Parts of a run, one after the other. A value for each; the last is also that of the field which it changes."""

    shares: tuple[FractionAbove0, ...] = field(
        (), "share of train.steps of each phase, in order; empty: those of data.sources, else one phase"
    )
    seq_len: tuple[Length, ...] = field((), "pack.seq_len in each phase; evaluation has the last; empty: one for all")
    batch_size: tuple[PositiveInt, ...] = field((), "train.batch_size in each phase; empty: the same in all")
    mask_rate: tuple[OpenFraction, ...] = field(
        (), "mask.rate in each phase; empty: the same in all", when={"mask.schedule": "constant"}
    )
    learning_rate: tuple[Positive, ...] = field(
        (), "optim.learning_rate in each phase, whose schedule goes on; empty: the same in all"
    )
    rope_theta: tuple[RotaryBase, ...] = field(
        (), "model.rope_theta in each phase, also of its evaluations; empty: the same in all"
    )


@section
class Eval:
    """What is measured on the held-out split."""

    mask_rate: OpenFraction = field(0.15, "masking rate of the evaluation, all by [MASK]; the same for every model")
    mask_unit: Annotated[str, "token", "word", "span"] = field(
        "token",
        "what evaluation masks: token | word | span, as mask.unit; with words and spans the loss per masked word is "
        "given too. The floors of the built-in language, whose tokens are words, are exact for each; text has none",
    )
    mask_rates: tuple[OpenFraction, ...] = field((), "more masking rates to evaluate at when the run ends", role=HOST)
    mask_seed: Seed = field(1234, "random seed of the evaluation's masks", role=HOST)
    batch_size: PositiveInt = setting(64, "examples of an evaluation batch")
    max_examples: Count = field(0, "number of held-out examples to evaluate; 0: all", role=HOST)
    ngram_order: Count = field(
        0,
        "causal: compare with Kneser-Ney n-gram models of order 2 up to this one, from the train split; 0: none",
        when={"model.directionality": "causal"},
        role=HOST,
    )
    anisotropy: bool = setting(
        False, "at the end, anisotropy and self-similarity of the states (Ethayarajh 2019)", unless=ENCODER_DECODER
    )
    beams: tuple[Annotated[float, Bounds(1, MAX_BEAMS)], ...] = setting(
        (), "parallel: at the end, beam sizes to translate max_examples of test (else dev)", when=PARALLEL, role=HOST
    )
    bleu_tokenizer: Annotated[str, "13a", "zh", "ja-mecab", "char", "flores200"] = setting(
        "13a",
        "sacrebleu's tokenizer: 13a | zh | ja-mecab (pip install sacrebleu[ja]) | char | flores200 (a download)",
        when=PARALLEL,
        role=HOST,
    )
    context_range: bool = setting(
        False,
        "at the end, measure how much context is used: gradients and recall of names by distance, time by length",
        when={"model.directionality": "causal"},
        unless=ENCODER_DECODER,
        role=HOST,
    )
    baseline: Annotated[str, "tfidf"] = setting(
        "", "classification: a score on dev of logistic regression: tfidf (the extra baseline); empty: none", role=HOST
    )
    sts: str = setting(
        "",
        "folder of STS-B's files, or .toml of scored pairs, to measure sentence similarity at the end; empty: none",
        is_path=True,
        unless=ENCODER_DECODER,
    )


@section
class Parallel:
    """How a run uses several devices."""

    mode: str = setting(
        "data_parallel", "data_parallel (jax.shard_map, parameters replicated) | pmap (jax.pmap) | fsdp (all sharded)"
    )
    num_slices: Count = setting(
        0,
        "groups of devices with fast links (slices of TPUs, hosts of GPUs): fsdp shards within one, and they add up "
        "gradients; 0: the slices of a TPU, else one",
    )
    reduce_dtype: Annotated[str, "float32", "bfloat16"] = field(
        "float32", "dtype in which devices add up gradients: float32 | bfloat16 (half the bytes, less precision)"
    )


@section
class Config:
    """All fields of a run; the command line sets them as NAME=VALUE."""

    seed: Seed = field(0, "random seed of initialization, data order, masks and dropout", role=TRACED)
    workdir: str = setting("runs/base", "directory of the run: checkpoints, metrics, result", is_path=True, role=HOST)
    objective: str = field(
        "mlm",
        "pretraining: mlm (masked tokens, BERT) | nsp (mlm and next-sentence prediction) | causal (next token, GPT) | "
        "hybrid (causal and masked examples mixed) | diffusion (masked diffusion) | denoising (a decoder writes what "
        "the encoder sees masked, BART) | replaced_token_detection (ELECTRA); tasks: classification | regression | "
        "multiple_choice | tagging | extractive_qa | edge_probing | contrastive (embeddings of texts)",
    )
    data: Data = subsection(Data)
    tokenizer: Tokenizer = subsection(Tokenizer)
    pack: Pack = subsection(Pack)
    mask: Mask = subsection(Mask)
    hybrid: Hybrid = subsection(Hybrid)
    distillation: Distillation = subsection(Distillation, unless=NO_MODEL_AS_TEACHER, role=TRACED)
    replaced_token_detection: ReplacedTokenDetection = subsection(ReplacedTokenDetection)
    contrastive: Contrastive = subsection(Contrastive)
    model: Model = subsection(Model)
    optim: Optim = subsection(Optim)
    init: Init = subsection(Init, role=HOST)
    finetune: Finetune = subsection(Finetune)
    downstream: Downstream = subsection(
        Downstream, unless={"downstream.tasks": "", "model.family": "encoder_decoder"}, role=HOST
    )
    train: Train = subsection(Train)
    phases: Phases = subsection(Phases, unless={"phases.shares": ((),)}, role=HOST)
    eval: Eval = subsection(Eval)
    parallel: Parallel = subsection(Parallel)
