"""The papers' recipes: `mlm train --recipe=NAME` trains by one, `mlm recipes` lists them.

A recipe is the fields that its source gives, without a corpus: the text is the user's. What it leaves out is the
default.
"""

from typing import Any, NamedTuple

from mlm.base import recipe_constants

BERT_VOCABULARY = {"tokenizer.kind": "wordpiece", "tokenizer.vocab_size": 30_522}

# Devlin et al. 2019: 256 rows of 512 tokens, a million steps; theirs were rows of 128 for nine tenths of the way. As in
# their code (google-research/bert) random tokens are drawn uniformly, [UNK] is masked too, and a tenth of the documents
# give shorter pairs. What differs from it: masks are new at every step, theirs were ten of each row
# (mask.static_masks); of a row they masked 15% of its length, rounded, [CLS] and [SEP] counted in, and no more than a
# cap (here floor of 15% of the tokens that may be masked, plus U(0,1)); their random token may be a special one; their
# Adam does not correct its bias; their first update is made at a rate of 0, and the linear fall counts from there, so
# that it takes over at 0.99 of the peak (here the first is a step up the warm-up, which ends at the peak).
BERT = {
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
}

# Liu et al. 2019, table 3 of the base model: 2,048 rows of 512 tokens, 125,000 steps at 7e-4, full sentences. The layer
# norm's epsilon is that of the released files, and one token type is all zeros, so that there is none here. Their
# vocabulary of bytes is not: the tokenizer is the default.
ROBERTA = {
    "pack.mode": "full_sentences",
    "pack.isolate_documents": False,
    "pack.seq_len": 512,
    "model.type_vocab_size": 0,
    "model.positions": "learned",
    "model.norm_placement": "post",
    "model.norm_eps": 1e-5,
    "train.batch_size": 2048,
    "train.steps": 125_000,
    "optim.learning_rate": 7e-4,
}

# Wettig et al. 2022, after 24hBERT: 4,096 rows of 128 tokens across documents, 23,000 steps, [MASK] only; where an
# experiment asks for 80/10/10, random tokens are drawn uniformly, as by the common collators. The layer norm's epsilon
# is ours, as no source at hand names theirs, and so is the tokenizer.
WETTIG = {
    "pack.isolate_documents": False,
    "model.positions": "learned",
    "mask.mask_token_prob": 1.0,
    "mask.random_token_prob": 0.0,
    "mask.random_token_from": "uniform",
    "train.batch_size": 4096,
    "train.steps": 23_000,
    "optim.learning_rate": 2e-3,
    "optim.clip_norm": 0.0,
}

# nanoGPT's for a CPU (Karpathy; its README): characters of one text, its last tenth held out, 12 stretches of 64 inputs
# a step, each with the character behind it, by GPT-2's model. Held-out loss of Shakespeare's: 1.88 nats a character as
# published, 1.773 here; 1.887 with its weights of 0.02, which are small for a width of 128. What differs besides: rows
# are cut from the text once, theirs begin anywhere; the measured run had biases, and no weight scaled by the number of
# layers (theirs: model.bias=none, model.depth_scaled_init=true).
NANOGPT = {
    "objective": "causal",
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

# At every width, also where the default is a small model's.
ENCODER = {
    "model.dropout": recipe_constants.BERT_DROPOUT,
    "model.attention_dropout": recipe_constants.BERT_DROPOUT,
    "model.init_std": recipe_constants.BERT_INIT_STD,
}


class PaperRecipe(NamedTuple):
    """A paper's recipe: its fields by dotted name, and where they are from."""

    fields: dict[str, Any]
    source: str


RECIPES = {
    "bert": PaperRecipe(
        BERT_VOCABULARY | BERT | ENCODER | {"model.size": "base"},
        "BERT-base (Devlin et al. 2019, arXiv 1810.04805; google-research/bert), all rows of 512 tokens",
    ),
    "roberta": PaperRecipe(
        ROBERTA | ENCODER | {"model.size": "base"},
        "RoBERTa-base (Liu et al. 2019, arXiv 1907.11692, table 3: 2K x 125K steps), our tokenizer and warm-up",
    ),
    "wettig": PaperRecipe(
        BERT_VOCABULARY | WETTIG | ENCODER | {"model.size": "large"},
        "Should you mask 15%? (Wettig et al. 2022, arXiv 2202.08005; DinkyTrain), large",
    ),
    "nanogpt": PaperRecipe(NANOGPT, "nanoGPT for a CPU (karpathy/nanoGPT README): characters of one text"),
}
