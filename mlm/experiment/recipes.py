"""Recipes as the fields that experiments set: a small budget's, and the papers'. What they leave out is the default."""

# A small budget's recipe: no dropout (no row is seen often), [MASK] only (Wettig et al. 2022 find no use for the other
# ways), and weights scaled to the width. Rotary positions let a small Transformer find its neighbours within a hundred
# steps; with sinusoidal ones it took six hundred, with learned ones most of the run. Gates that start with memories of
# all lengths let an LSTM recall a name from sentences ago: 99% of them after 1,500 steps, and 35% without.
SMALL = {
    "model.dropout": 0.0,
    "mask.mask_token_prob": 1.0,
    "mask.random_token_prob": 0.0,
    "model.init_std": 0.08,
    "data.language.train_documents": 80_000,
}
# What it says of fields that one architecture alone reads, to be added for that one:
# SMALL | ARCHITECTURE_FIELDS["lstm"]. The numbers are those of the default recipe of small models
# (mlm/training/run/default_recipe.py), stated for sweeps over sizes.
GATES = {"model.chrono_init": 128}
ARCHITECTURE_FIELDS = {
    "window": {},
    "bag": {},
    "elman": {},
    "gru": GATES,
    "lstm": GATES,
    "transformer": {"model.attention_dropout": 0.0, "model.positions": "rotary"},
}

# What each architecture learned best by in it, of what experiments/architectures.py tried (scale trials; its table).
TUNED_FIELDS = {
    member: {"optim.learning_rate": rate, "train.batch_size": 16}
    for member, rate in (
        ("window", 4e-3),
        ("bag", 4e-3),
        ("elman", 4e-3),
        ("gru", 8e-3),
        ("lstm", 4e-3),
        ("transformer", 4e-3),
    )
}


def set_training_length(num_examples: int, eval_interval: int, fields: dict) -> dict:
    """The fields, with as many steps as read num_examples examples, and an evaluation after each eval_interval."""
    batch_size = fields["train.batch_size"]
    return fields | {"train.steps": num_examples // batch_size, "train.eval_every": eval_interval // batch_size}


# A model in minutes, as a Transformer learns best, and in seconds: to see that an experiment runs, not what it finds.
LAPTOP = SMALL | {"model.size": "micro"} | set_training_length(51_200, 6_400, TUNED_FIELDS["transformer"])
QUICK = LAPTOP | {
    "data.language.train_documents": 2000,
    "data.language.validation_documents": 100,
    "train.batch_size": 16,
    "train.steps": 40,
    "train.log_every": 10,
    "train.eval_every": 20,
}

# What a model is fine-tuned for once it is trained. Of the built-in language, where the best possible score is known: a
# grid of one point, in seconds and in half a minute. The papers': the tasks' files lie in folders mnli, sst2, ... of a
# folder "tasks", or of --config.downstream.path=...; --config.downstream.tasks= leaves all that out.
QUICK_TASKS = {"downstream.tasks": "topic", "downstream.learning_rates": (1e-3,), "downstream.epochs": (1.0,)}
LAPTOP_TASKS = {"downstream.tasks": "topic", "downstream.learning_rates": (1e-3,), "downstream.seeds": 3}
PAPER_TASKS = {"downstream.tasks": "mnli,qnli,qqp,sst2", "downstream.path": "tasks", "downstream.seeds": 3}

# Grids of fine-tuning. Devlin et al. 2019, appendix A.3; and for sets of a few thousand examples Mosbach et al. 2021
# (arXiv:2006.04884), who take longer, with more warm-up, and choose nothing: fewer of theirs fail.
BERT_GRID = {
    "downstream.learning_rates": (5e-5, 3e-5, 2e-5),
    "downstream.epochs": (2.0, 3.0, 4.0),
    "downstream.batch_sizes": (16, 32),
}
MOSBACH = {
    "downstream.learning_rates": (2e-5,),
    "downstream.epochs": (20.0,),
    "downstream.batch_sizes": (16,),
    "downstream.variants": "optim.warmup_fraction=0.1 train.group_by_length=False",
}

# An accelerator's: English Wikipedia as prepared by TensorFlow Datasets, whose size and contents are not those of the
# papers' own corpora (with books, news or the web beside), and WordPiece of BERT's size.
LARGE = {
    "data.corpus": "tfds",
    "data.tfds_name": "wiki40b/en",
    "tokenizer.kind": "wordpiece",
    "tokenizer.vocab_size": 30_522,
    "model.dtype": "bfloat16",
    "model.scan_unroll": 1,
    "eval.batch_size": 512,
    "eval.max_examples": 10_000,
}

# Devlin et al. 2019: 256 rows of 512 tokens, a million steps; theirs were rows of 128 for nine tenths of the way. As in
# their code (google-research/bert) random tokens are drawn uniformly, [UNK] is masked too, and a tenth of the documents
# give shorter pairs. What differs from it: masks are new at every step, theirs were ten of each row
# (mask.static_masks); of a row they masked 15% of its length, rounded, [CLS] and [SEP] counted in, and no more than a
# cap (here floor of 15% of the tokens that may be masked, plus U(0,1)); their random token may be a special one; their
# Adam does not correct its bias; their first update is made at a rate of 0, and the linear fall counts from there, so
# that it takes over at 0.99 of the peak (here the first is a step up the warm-up, which ends at the peak).
BERT = LARGE | {
    "pack.mode": "segment_pair",
    "pack.seq_len": 512,
    "pack.short_seq_prob": 0.1,
    "objective": "nsp",
    "mask.random_token_from": "uniform",
    "mask.mask_unk": True,
    "model.positions": "learned",
    "model.norm_placement": "post",
    "model.norm_eps": 1e-12,
    "train.batch_size": 256,
    "train.steps": 1_000_000,
    "optim.learning_rate": 1e-4,
    "optim.warmup_fraction": 0.01,
    "optim.b2": 0.999,
    "train.checkpoint_every": 10_000,
}

# Wettig et al. 2022, after 24hBERT: 4,096 rows of 128 tokens across documents, 23,000 steps, [MASK] only; where an
# experiment asks for 80/10/10, random tokens are drawn uniformly, as by the common collators. The layer norm's epsilon
# is ours, as no source at hand names theirs, and so are the tokenizer and the corpus (LARGE).
WETTIG = LARGE | {
    "pack.isolate_documents": False,
    "model.positions": "learned",
    "mask.mask_token_prob": 1.0,
    "mask.random_token_prob": 0.0,
    "mask.random_token_from": "uniform",
    "train.batch_size": 4096,
    "train.steps": 23_000,
    "optim.learning_rate": 2e-3,
    "optim.clip_norm": 0.0,
    "train.checkpoint_every": 1000,
}

# nanoGPT's for a CPU (Karpathy; its README): characters of one text, its last tenth held out, 12 stretches of 64 inputs
# a step, each with the character behind it, by GPT-2's model. Held-out loss of Shakespeare's: 1.88 nats a character as
# published, 1.773 here; 1.887 with its weights of 0.02, which are small for a width of 128. What differs besides: rows
# are cut from the text once, theirs begin anywhere; there are biases; no weight is scaled by the number of layers.
NANOGPT = {
    "objective": "causal",
    "data.corpus": "text",
    "data.validation_fraction": 0.1,
    "tokenizer.kind": "characters",
    "pack.mode": "stream",
    "pack.seq_len": 65,
    "model.num_layers": 4,
    "model.width": 128,
    "model.mlp_dim": 512,
    "model.num_heads": 4,
    "model.max_positions": 65,
    "model.positions": "learned",
    "model.type_vocab_size": 0,
    "model.embed_norm": False,
    "model.lm_head": "linear",
    "model.init_std": 0.08,
    "model.norm_eps": 1e-5,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "optim.learning_rate": 1e-3,
    "optim.schedule": "cosine",
    "optim.final_lr_fraction": 0.1,
    "optim.warmup_fraction": 0.05,
    "optim.b2": 0.99,
    "optim.eps": 1e-8,
    "optim.weight_decay": 0.1,
    "train.batch_size": 12,
    "train.steps": 2000,
    "train.eval_every": 500,
}
