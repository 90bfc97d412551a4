"""Recipes as the fields that experiments set: a small budget's, and the papers'. What they leave out is the default."""

# A small budget's recipe: no dropout (no row is seen often), [MASK] only (Wettig et al. 2022 find no use for the other
# ways), and weights scaled to the width. Rotary positions let a small Transformer find its neighbours within a hundred
# steps; with sinusoidal ones it took six hundred, with learned ones most of the run. Gates that start with memories of
# all lengths let an LSTM recall a name from sentences ago: 99% of them after 1,500 steps, and 35% without. Batches of
# 64 brought it nearer the floor than 16 on about as many tokens (0.12 nats against 0.16).
SMALL = {"model.dropout": 0.0, "mask.mask_share": 1.0, "mask.random_share": 0.0, "model.init_std": 0.08,
         "train.batch_size": 64, "data.language.train_documents": 80_000}
# What it says of fields that one architecture alone reads, to be added for that one: SMALL | OWN["lstm"].
GATES = {"model.timescale": 128}
OWN = {"window": {}, "bag": {}, "elman": {}, "gru": GATES, "lstm": GATES,
       "transformer": {"model.attention_dropout": 0.0, "model.positions": "rotary"}}

# Learning rates for it: the best of three trials of each architecture (experiments/architectures.py, scale trials).
BEST = {"window": 8e-3, "bag": 8e-3, "elman": 8e-3, "gru": 8e-3, "lstm": 8e-3, "transformer": 4e-3}

# A model in minutes, at a Transformer's learning rate, and in seconds: to see that an experiment runs, not what it
# finds.
LAPTOP = SMALL | {"model.size": "micro", "optim.learning_rate": BEST["transformer"], "train.steps": 800,
                  "train.eval_every": 100}
QUICK = LAPTOP | {"data.language.train_documents": 2000, "data.language.validation_documents": 100,
                  "train.batch_size": 16, "train.steps": 40, "train.log_every": 10, "train.eval_every": 20}

# An accelerator's: English Wikipedia as prepared by TensorFlow Datasets, whose size and contents are not those of the
# papers' own corpora (with books, news or the web beside), and WordPiece of BERT's size.
LARGE = {"data.corpus": "tfds", "data.tfds_name": "wiki40b/en", "tokenizer.kind": "wordpiece",
         "tokenizer.vocab_size": 30_522, "model.dtype": "bfloat16", "model.unroll": 1, "eval.batch_size": 512,
         "eval.max_rows": 10_000}

# Devlin et al. 2019: 256 rows of 512 tokens, a million steps; theirs were rows of 128 for nine tenths of the way.
BERT = LARGE | {"pack.mode": "segment_pair", "pack.length": 512, "objective": "nsp", "model.norm": "post",
                "train.batch_size": 256, "train.steps": 1_000_000, "optim.learning_rate": 1e-4,
                "optim.warmup_fraction": 0.01, "optim.b2": 0.999, "train.checkpoint_every": 10_000}

# Wettig et al. 2022, after 24hBERT: 4,096 rows of 128 tokens across documents, 23,000 steps, [MASK] only.
WETTIG = LARGE | {"pack.isolate": False, "mask.mask_share": 1.0, "mask.random_share": 0.0, "train.batch_size": 4096,
                  "train.steps": 23_000, "optim.learning_rate": 2e-3, "optim.clip": 0.0, "train.checkpoint_every": 1000}
