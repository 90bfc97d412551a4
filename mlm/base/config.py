"""Every knob of a run: typed fields with unit and default, what follows from them, and a run's name by them."""
import dataclasses

from mlm.base.further import Downstream, Finetune, Init, setting


@dataclasses.dataclass(unsafe_hash=True)
class Language:
    train_documents: int = 20_000       # each fills one row
    validation_documents: int = 1_000
    seed: int = 0                       # of the documents, the same for every run that is to be compared
    max_words: int = 0                      # in a document at most, as many whole sentences as fit; 0: what a row holds
    num_topics: int = 8                     # of which a document has one
    num_names: int = 24                     # of which a document has one protagonist
    zipf_exponent: float = 1.0  # exponent of word frequency by rank in each class; 0: uniform
    word_order: float = 1.0  # probability that a word has the class its place demands; 0: order is no help
    agreement_prob: float = 1.0  # probability that a verb has its subject's number, else it has the other
    modifier_prob: float = 0.6  # probability that a prepositional phrase or relative clause follows a subject
    modifier_continue_prob: float = 0.45  # probability that a modifier is followed by a further one (geometric lengths)
    attractor_prob: float = 0.5  # probability that a noun inside a modifier is of the other number
    topic_strength: float = 3.0  # nats by which a topic favours its own nouns and verbs; 0: topics are alike
    protagonist_prob: float = 0.4  # share of subjects that are a name, not a noun; half as often in other places
    recall_prob: float = 0.9                 # probability that a name is the protagonist's, else it is any name


@dataclasses.dataclass(unsafe_hash=True)
class Labelled:
    """How the files of a task are read; what is empty follows from its row of TASKS (mlm/data/tasks/tasks.py)."""

    format: str = ""                    # tsv | csv | jsonl | conll (a token a line) | conllu | squad | tfds
    train: str = ""                     # file names below task_path; tfds: splits, such as "train[:90%]"
    dev: str = ""
    test: str = ""  # empty: there is none
    text_column: str = ""  # columns: by name where the file has a header (conllu: form, upos, ...), by
    #       number from 0 where it has none. Here a text, or the first of a pair; of
                                        #       conll and conllu the token
    text_pair_column: str = ""  # the second text of a pair; empty: rows hold one text. Of choices what stands
    #       before each of them
    choice_columns: str = ""                   # choice: the columns of the endings of `text`, separated by commas
    label_column: str = ""  # the label or number; of conll and conllu the tag
    head_column: str = ""  # conllu, edge: column of the numbers of the words that labels relate their own
    #       to (head beside deprel), 0 where none; empty: labels are of a word alone
    id_column: str = ""  # what a row is called in predictions; empty: its number in the file, from 0
    quoting: str = ""                   # tsv, csv: whether "..." may hold delimiters and line ends: on | off; empty:
                                        #       off for tsv, on for csv
    scheme: str = ""                    # of tags that mark stretches: bio | iob1 (turned into bio); empty: a tag a word
    labels: str = ""                    # in their order, separated by commas; empty: those of the train split, sorted,
                                        #       and of choices their numbers, from 0
    scores: str = ""                    # names separated by commas, of which one judges by the first: accuracy | f1 |
                                        #       matthews | pearson | spearman | exact; empty: as the objective has them
    stride: int = 128                   # squad: tokens from one window of a passage to the next


@dataclasses.dataclass(unsafe_hash=True)
class ParallelText:
    """Which files of parallel_path hold pairs of a text and its translation, a pair a line."""

    source: str = ""                    # ending of the files of texts that are read, such as "en"; with train: train.en
    target: str = ""                    # of those beside them that are written, such as "de"; empty, as source then is:
                                        #       train is one file, its lines a source, a tab and a target
    train: str = "train"                # file names without these endings, all the name where there are none
    dev: str = "val"
    test: str = ""                      # empty: there is none


@dataclasses.dataclass(unsafe_hash=True)
class Data:
    corpus: str = "auto"                # text | tfds | docstrings | language (drawn, its best possible loss known) |
                                        #       task (labelled rows) | aligned (a text and its translation); auto: task
                                        #       where task is set, aligned where parallel_path, text where path is, else
                                        #       language
    path: str = ""                      # text: globs of .txt and .gz files, separated by commas
    validation_path: str = ""  # text: globs of the held-out files; empty: a share of path's documents
    document_boundary: str = "file"  # text: a document is a "file" or a "line", ends at a "blank_line", or starts at
    #       a line that fully matches this regular expression, such as " = [^=]+ = "
                                        #       for WikiText: " = Title = " does, " = = Section = = " does not
    tfds_name: str = ""                 # tfds: name of the data set, such as "lm1b" or "wiki40b/en"
    tfds_dir: str = ""                  # tfds, of labelled rows too: folder of the prepared data sets; empty: the
                                        #       library's default
    tfds_field: str = "text"            # tfds: the feature that holds a document
    validation_fraction: float = 0.05   # share of the documents held out where the corpus brings no held-out split; of
                                        #       a stream the end, as a share of its characters
    task: str = ""                      # task: row of TASKS (mlm/data/tasks/tasks.py), or "own": all as labelled says
    task_path: str = ""                 # task: folder of its files; labelled.format tfds: name, such as "glue/sst2"
    parallel_path: str = ""              # aligned: folder of its files; empty: drawn in the built-in language
    cache: str = setting("runs/cache")  # folder of tokenizers and packed rows, shared by runs
    language: Language = dataclasses.field(default_factory=Language)
    labelled: Labelled = dataclasses.field(default_factory=Labelled)
    parallel: ParallelText = dataclasses.field(default_factory=ParallelText)


@dataclasses.dataclass(unsafe_hash=True)
class Tokenizer:
    kind: str = ""                      # unigram (SentencePiece) | wordpiece | bpe (of bytes) | words | characters;
                                        #       empty: words for the language, else unigram
    vocab_size: int = 0                 # entries, the five special ones included; 0: every word of the language, every
                                        #       one of characters, else 8192
    path: str = setting("")             # folder of a tokenizer's file, such as a run's, to take instead of learning
                                        #       one; its content is part of what the rows are known by


@dataclasses.dataclass(unsafe_hash=True)
class Pack:
    mode: str = ""                      # full_sentences | doc_sentences | segment_pair | stream (the running text, cut
                                        #       every so many tokens, with nothing between); empty: doc_sentences for
                                        #       the language, else full_sentences
    seq_len: int = 128                   # tokens in a row; of choices tokens of each, side by side in a row
    source_len: int = 0  # aligned: tokens of the source beside a row; 0: as length
    isolate_documents: bool = True  # nothing is seen across documents that share a row (attention, state, window)
    short_seq_prob: float = 0.0            # segment_pair: of the documents, those whose pairs are shorter, by a length
                                        #       drawn for each; in BERT's code 0.1


@dataclasses.dataclass(unsafe_hash=True)
class Mask:
    rate: float = 0.15                  # share of a row's eligible tokens that are corrupted, at the first step
    schedule: str = "constant"          # of the rate over train.steps: constant | linear | cosine (half a period)
    final_rate: float = 0.0             # linear, cosine: the rate that the step after the last would have
    max_rate: float = setting(0.0)      # largest rate the compiled step must hold; 0: of rate and final_rate. Runs at
                                        #       several rates share one compiled program where this is the same: quick
                                        #       to start, but each pays for the output layer at this rate
    predict_rate: float = 0.0  # share of a row's eligible tokens that are predicted; 0: all that are corrupted
    masks_per_example: int = 0  # disjoint masks that each row has in a step, every one a pass through the
    #       model; 0: as many as predict asks for, predict / rate rounded up
    static_masks: int = 0  # static masking: masks of each train row, one an epoch in turn; 0: dynamic, new
    #       ones at every step
    unit: str = "token"                 # what training masks as a whole: token | word | span (of 1 to 10 words, 3.8 on
                                        #       average); evaluation masks tokens
    mask_token_prob: float = 0.8             # of the chosen: replaced by [MASK]
    random_token_prob: float = 0.1           # of the chosen: replaced by a random token; the rest stay as they are
    random_token_from: str = "unigram"        # distribution of the random tokens: unigram | uniform
    mask_unk: bool = False               # whether training may choose [UNK], as BERT's code does; evaluation never asks
                                        #       for it


@dataclasses.dataclass(unsafe_hash=True)
class Hybrid:
    causal_fraction: float = 0.0625  # share of a batch's rows that are causal; the others are masked
    causal_first_fraction: float = 0.0  # share of the steps, the first ones, in which all rows are causal


@dataclasses.dataclass(unsafe_hash=True)
class ReplacedTokenDetection:
    generator_size: float = 0.25             # its width, heads and hidden units, as a share of the model's
    discriminator_weight: float = 50.0                # of the model's loss beside the generator's


@dataclasses.dataclass(unsafe_hash=True)
class Model:
    family: str = "transformer"         # feedforward | rnn | transformer | encoder_decoder (of rows beside a source)
    cell: str = ""                      # rnn: elman | gru | lstm; feedforward: window | bag; encoder_decoder:
                                        #       transformer | gru; empty: the family's first
    size: str = "tiny"                  # row of mlm/models/sizes.py that fills the zeros below
    num_layers: int = 0                     # encoder_decoder: on each side; a decoder of the cell gru has one
    width: int = 0                      # of the embeddings and of the stream between layers
    mlp_dim: int = 0                    # transformer, feedforward: units inside a layer's MLP
    rnn_dim: int = 0                    # rnn: recurrent units of one direction
    num_heads: int = 0                      # transformer
    window: int = 0                     # feedforward: neighbours on each side
    context: str = ""                      # of its row, each token's state: both (sides) | left (itself and what stands
                                        #       before it) | apart (two stacks, of which one sees the left and one the
                                        #       right, as ELMo's) | row (each row says: both or left); empty: as the
                                        #       objective asks
    chrono_init: int = 0  # gru, lstm: gates start remembering for 1 to so many tokens; 0: as few as usual
    norm_placement: str = "pre"                   # transformer: layer norm before (pre) or after (post) each sub-layer
    norm_eps: float = 1e-6              # added to the variance in each layer norm
    embed_norm: bool = True             # a layer norm behind the embeddings, as BERT has it
    activation: str = "gelu"            # transformer, feedforward, inside a layer: gelu | gelu_tanh (its approximation,
                                        #       as GPT-2 has it) | relu
    lm_head: str = "bert"  # bert: a dense layer, GELU and a norm before the token embeddings' product with
    #       the state, and a bias behind it | plain: that product alone
    positions: str = "learned"          # transformer: learned | sinusoidal | rotary
    max_positions: int = 512            # transformer: longest row
    type_vocab_size: int = 2              # sentence kinds told apart by an embedding; 0: no such embedding
    dropout: float = 0.1                # of embeddings and of each sub-layer's output
    attention_dropout: float = 0.1      # transformer: of the attention weights
    init_std: float = 0.02              # of the weights' truncated normal; 0: 1/sqrt(inputs) of each matrix
    dtype: str = "float32"              # of matrix products, on accelerators of all activations: float32 | bfloat16;
                                        #       parameters stay float32
    scan_unroll: int = 0  # layers per iteration of the scan; 0: all (fast on CPU), 1: quick to compile
    rnn_unroll: int = 1                # rnn: tokens per iteration of the scan along a row
    remat: bool = setting(False)        # the backward pass computes each layer again instead of keeping what it was:
                                        #       less memory for a third more work
    fused_kernels: bool = setting(
        True
    )  # hand-written backward passes where mlm/models/cpu_kernels.py has one for the device
    disabled_kernels: str = setting("auto")  # which of those paths are not taken, such as "recurrence,gelu"; auto: what
    #       mlm.cli.train and mlm.launch.sweep measured to be slower on this machine; of a
    #       run that is there, what it began with. Where nothing measured: none


@dataclasses.dataclass(unsafe_hash=True)
class Optim:
    learning_rate: float = 1e-3         # peak
    schedule: str = "linear"            # linear | cosine | wsd | constant | inverse_sqrt, all after a linear warm-up
    warmup_fraction: float = 0.06       # of the steps
    decay_fraction: float = 0.1         # wsd (warmup-stable-decay): of the steps, at the end
    final_lr_fraction: float = 0.0         # of the peak, reached at the last step
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 0.01          # not applied to biases and layer norms
    clip_norm: float = 1.0                   # largest global gradient norm; 0: no clipping
    label_smoothing: float = 0.0        # causal, denoise, in training: share of a target's probability that is spread
                                        #       evenly over the vocabulary; evaluation asks for the target alone
    average_checkpoints: int = 0  # the run ends with the mean of its parameters at so many moments, the last of
    #       them its end (averaged checkpoints); 0: with those of its last step
    average_every: int = 100            # steps between these moments


@dataclasses.dataclass(unsafe_hash=True)
class Train:
    steps: int = 1000                   # updates
    batch_size: int = 32                # rows an update, over all devices
    group_by_length: bool = True        # whether a task's rows are sorted by length among those of eight batches, so
                                        #       that little of a batch is padding; else a batch is what chance makes it
    grad_accum_steps: int = 1  # parts the batch is computed in, one after the other
    spike_threshold: float = 0.0  # a loss of more than so many times its running mean, or one that is not finite,
    #       sends the run back to the last multiple of spike_back steps before it;
                                        #       the batches from there up to it are left out. 0: the run ends where the
                                        #       loss is not finite, and never goes back
    spike_rewind_steps: int = 100               # steps
    spike_max_rewinds: int = 10               # how often a run goes back; one spike more ends it
    eval_every: int = setting(0)        # steps; 0: at the end only
    checkpoint_every: int = setting(500)  # steps
    log_every: int = setting(50)        # steps


@dataclasses.dataclass(unsafe_hash=True)
class Eval:
    mask_rate: float = 0.15                  # share of tokens replaced by [MASK], the same for every model
    mask_rates: tuple[float, ...] = ()       # further shares to evaluate at, once, when the run ends
    mask_seed: int = 1234                    # of the frozen masks
    batch_size: int = setting(64)       # rows
    max_examples: int = 0  # 0: the whole held-out split
    ngram_order: int = 0  # causal: order up to which, from 2 on, Kneser-Ney models of n-grams are counted
    #       in the train split, to stand beside the loss; 0: none
    anisotropy: bool = setting(False)   # whether to ask, when the run ends, how far states are their words' own
    beams: tuple[float, ...] = setting(())  # aligned: by beams of how many texts (whole numbers) the held-out pairs
                                        #       are translated when the run ends: those of test, where there is one, and
                                        #       the first max_rows
    context_range: bool = setting(False)  # whether to ask, when the run ends, how far back a model that sees the left
    #       reaches: gradients and names by distance, and time by length
    sts: str = setting("")              # folder of STS-B's files, to ask its similarities when the run ends


@dataclasses.dataclass(unsafe_hash=True)
class Parallel:
    mode: str = setting("jit")          # jit (over a mesh) | pmap | sharded: each device keeps its part of the
                                        #       parameters and moments alone


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    seed: int = 0                       # of initialisation, data order, masks and dropout
    workdir: str = setting("runs/base")
    objective: str = "mlm"              # row of mlm/objectives: mlm | nsp (masked tokens and next sentence) | causal |
                                        #       hybrid (causal and masked rows, or the one after the other) |
                                        #       diffusion | denoise (a decoder writes a row that its encoder sees
                                        #       masked) | replaced (which tokens a generator put there); on labelled
                                        #       rows classify | regress | choice | tag | span | edge
    data: Data = dataclasses.field(default_factory=Data)
    tokenizer: Tokenizer = dataclasses.field(default_factory=Tokenizer)
    pack: Pack = dataclasses.field(default_factory=Pack)
    mask: Mask = dataclasses.field(default_factory=Mask)
    hybrid: Hybrid = dataclasses.field(default_factory=Hybrid)
    replaced_token_detection: ReplacedTokenDetection = dataclasses.field(default_factory=ReplacedTokenDetection)
    model: Model = dataclasses.field(default_factory=Model)
    optim: Optim = dataclasses.field(default_factory=Optim)
    init: Init = dataclasses.field(default_factory=Init)
    finetune: Finetune = dataclasses.field(default_factory=Finetune)
    downstream: Downstream = dataclasses.field(default_factory=Downstream)
    train: Train = dataclasses.field(default_factory=Train)
    eval: Eval = dataclasses.field(default_factory=Eval)
    parallel: Parallel = dataclasses.field(default_factory=Parallel)
