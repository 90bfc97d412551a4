"""The papers' recipes: `mlm train --recipe=NAME` trains by one, `mlm recipes` lists them.

A recipe is the fields that its source gives, without a corpus: the text is the user's. What it leaves out is the
default.
"""

from typing import Any, NamedTuple

from mlm.base import recipe_constants

BERT_VOCABULARY = {"tokenizer.kind": "wordpiece", "tokenizer.vocab_size": 30_522}

# Devlin et al. 2019: 256 rows of 512 tokens, a million steps; nine tenths of them have those of BERT_PHASES. As in
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

BERT_PHASES = {"phases.shares": (0.9, 0.1), "phases.seq_len": (128, 512)}

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

# ModernBERT's block at its base size, by the configs of Ettin's 150M encoder (JHU-CLSP/ettin-encoder-vs-decoder), which
# has it too, and ModernBERT's own: 1.72T tokens in rows of 1,024, then 300B in rows of 8,192, the last 50B of them the
# decay. The batch grows from 768 rows to 4,608 over the first 50B tokens, the rate over the first 3B: so many steps
# MODERN_BERT_STEPS are. What differs: the kind of tokenizer is our default, of their vocabulary's size. Rows of 8,192
# are as many tokens a step as the others, which no source at hand says. Rows are full: there is nothing to unpad.
MODERN_BERT_STEPS = {"warmup": 2_765, "batch_warmup": 18_165, "short": 372_083, "long": 52_982, "decay": 10_596}
MODERN_BERT_LENGTH = sum(MODERN_BERT_STEPS[name] for name in ("short", "long", "decay"))
MODERN_BERT_SHORT = MODERN_BERT_STEPS["short"] / MODERN_BERT_LENGTH
MODERN_BERT = {
    "tokenizer.vocab_size": 50_368,
    "pack.seq_len": 8192,
    "phases.shares": (MODERN_BERT_SHORT, 1 - MODERN_BERT_SHORT),
    "phases.seq_len": (1024, 8192),
    "phases.batch_size": (4608, 576),
    "phases.learning_rate": (8e-4, 3e-4),
    "phases.rope_theta": (10_000.0, 160_000.0),
    "mask.rate": 0.3,
    "mask.mask_token_prob": 0.8,
    "mask.random_token_prob": 0.1,
    "model.num_layers": 22,
    "model.width": 768,
    "model.mlp_dim": 1152,
    "model.num_heads": 12,
    "model.max_positions": 8192,
    "model.type_vocab_size": 0,
    "model.positions": "rotary",
    "model.rope_theta": 160_000.0,
    "model.local_rope_theta": 10_000.0,
    "model.local_window": 128,
    "model.global_every": 3,
    "model.norm_placement": "pre",
    "model.norm_eps": 1e-5,
    "model.first_norm": False,
    "model.bias": "output",
    "model.activation": "geglu",
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.init_std": recipe_constants.BERT_INIT_STD,
    "model.depth_scaled_init": True,
    "train.batch_size": 576,
    "train.steps": MODERN_BERT_LENGTH,
    "train.grad_accum_steps": 6,
    "train.batch_warmup_fraction": MODERN_BERT_STEPS["batch_warmup"] / MODERN_BERT_LENGTH,
    "train.initial_batch_fraction": 1 / 6,
    "optim.optimizer": "stable_adamw",
    "optim.learning_rate": 3e-4,
    "optim.schedule": "wsd",
    "optim.warmup_fraction": MODERN_BERT_STEPS["warmup"] / MODERN_BERT_LENGTH,
    "optim.decay_fraction": MODERN_BERT_STEPS["decay"] / MODERN_BERT_LENGTH,
    "optim.decay_shape": "one_minus_sqrt",
    "optim.final_lr_fraction": 0.02,
    "optim.b2": 0.98,
    "optim.eps": 1e-6,
    "optim.weight_decay": 1e-5,
}

# NeoBERT (Breton et al. 2025, the ablations in chandar-lab/NeoBERT): a million steps of 2,048 rows of 1,024 tokens,
# then 50,000 of 512 rows of 4,096, 2M tokens each; only [MASK]. What differs: their cosine reaches a tenth after 90% of
# the steps, ours at the end. The norm behind the embeddings, token types, the table of the output and the tokenizer are
# our defaults.
NEO_BERT_SHORT = 1_000_000 / 1_050_000
NEO_BERT = {
    "pack.seq_len": 4096,
    "phases.shares": (NEO_BERT_SHORT, 1 - NEO_BERT_SHORT),
    "phases.seq_len": (1024, 4096),
    "phases.batch_size": (2048, 512),
    "mask.rate": 0.2,
    "mask.mask_token_prob": 1.0,
    "mask.random_token_prob": 0.0,
    "model.num_layers": 28,
    "model.width": 768,
    "model.mlp_dim": 2048,
    "model.num_heads": 12,
    "model.max_positions": 4096,
    "model.positions": "rotary",
    "model.norm": "rmsnorm",
    "model.norm_placement": "pre",
    "model.norm_eps": 1e-5,
    "model.activation": "swiglu",
    "model.bias": "none",
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.init_std": recipe_constants.BERT_INIT_STD,
    "train.batch_size": 512,
    "train.steps": 1_050_000,
    "optim.learning_rate": 6e-4,
    "optim.schedule": "cosine",
    "optim.final_lr_fraction": 0.1,
    "optim.warmup_fraction": 2000 / 1_050_000,
    "optim.b1": 0.9,
    "optim.b2": 0.95,
    "optim.weight_decay": 0.1,
    "optim.clip_norm": 1.0,
}

# GPT-BERT for 10M words (ltgoslo/gpt-bert, pretraining/train_10m.py, configs/small.json): a sixteenth of the rows
# causal. What differs: norms, gates and biases of their block are our defaults, and so are the initial weights and the
# kind of the tokenizer; between warm-up and cool-down the rate is constant; the batch grows over all steps, by 64
# microbatches. No source at hand has other phases than these of masks and batches.
GPT_BERT = {
    "objective": "hybrid",
    "hybrid.causal_fraction": 1 / 16,
    "tokenizer.vocab_size": 8192,
    "pack.seq_len": 128,
    "mask.rate": 0.3,
    "mask.schedule": "linear",
    "mask.final_rate": 0.15,
    "mask.mask_token_prob": 0.8,
    "mask.random_token_prob": 0.1,
    "model.num_layers": 12,
    "model.width": 384,
    "model.mlp_dim": 1280,
    "model.num_heads": 6,
    "model.positions": "relative",
    "model.activation": "geglu",
    "train.batch_size": 32_768,
    "train.steps": 7812,
    "train.grad_accum_steps": 64,
    "train.batch_warmup_fraction": 1.0,
    "train.initial_batch_fraction": 0.25,
    "optim.optimizer": "lamb",
    "optim.learning_rate": 1.41e-2,
    "optim.schedule": "wsd",
    "optim.warmup_fraction": 0.016,
    "optim.decay_fraction": 0.016,
    "optim.b2": 0.98,
    "optim.eps": 1e-8,
    "optim.weight_decay": 0.1,
    "optim.clip_norm": 2.0,
    "optim.ema_decay": 0.999,
    "optim.z_loss": 1e-4,
}

# At every width, also where the default is a small model's.
ENCODER = {
    "model.dropout": recipe_constants.BERT_DROPOUT,
    "model.attention_dropout": recipe_constants.BERT_DROPOUT,
    "model.init_std": recipe_constants.BERT_INIT_STD,
}


SIZE_FIELDS = ("model.num_layers", "model.width", "model.mlp_dim", "model.num_heads")  # that model.size gives


class PaperRecipe(NamedTuple):
    """A paper's recipe: its fields by dotted name, and where they are from."""

    fields: dict[str, Any]
    source: str

    def drop_size(self) -> dict[str, Any]:
        """Returns the fields without the paper's size, for a model of another model.size."""
        return {name: value for name, value in self.fields.items() if name not in SIZE_FIELDS}


RECIPES = {
    "bert": PaperRecipe(
        BERT_VOCABULARY | BERT | BERT_PHASES | ENCODER | {"model.size": "base"},
        "BERT-base (Devlin et al. 2019, arXiv 1810.04805; google-research/bert), rows of 128 tokens, then of 512",
    ),
    "roberta": PaperRecipe(
        ROBERTA | ENCODER | {"model.size": "base"},
        "RoBERTa-base (Liu et al. 2019, arXiv 1907.11692, table 3: 2K x 125K steps), our tokenizer and warm-up",
    ),
    "wettig": PaperRecipe(
        BERT_VOCABULARY | WETTIG | ENCODER | {"model.size": "large"},
        "Should you mask 15%? (Wettig et al. 2022, arXiv 2202.08005; DinkyTrain), large",
    ),
    "modernbert": PaperRecipe(
        MODERN_BERT,
        "ModernBERT-base (Warner et al. 2024, arXiv 2412.13663), also by Ettin's configs (arXiv 2507.11412), 150M",
    ),
    "neobert": PaperRecipe(
        NEO_BERT, "NeoBERT (Breton et al. 2025, arXiv 2502.19587; chandar-lab/NeoBERT), rows of 1,024, then 4,096"
    ),
    "gpt-bert": PaperRecipe(
        GPT_BERT | ENCODER,
        "GPT-BERT for 10M words (Charpentier & Samuel 2024, arXiv 2410.24159; ltgoslo/gpt-bert), small",
    ),
    "nanogpt": PaperRecipe(NANOGPT, "nanoGPT for a CPU (karpathy/nanoGPT README): characters of one text"),
}
