"""The jobs of the part inference: by this project, and by Hugging Face's libraries in torch."""

import functools
from pathlib import Path

import numpy as np

from mlm.base.special import SPECIAL_TOKENS

NUM_FILL, NUM_EMBED = 200, 2000  # sentences
TOP_K = 5
MASK = SPECIAL_TOKENS[-1]


def prepare_model(folder: str, text: str, tokenizer_folder: str) -> tuple[str, list[str], list[str]]:
    """Writes a model of size mini with random parameters as a folder that both sides read.

    Returns its path, NUM_FILL sentences with one masked word, and NUM_EMBED sentences of mixed lengths.
    """
    import jax

    from mlm import models
    from mlm.base import config, fields
    from mlm.data.text import corpus
    from mlm.data.tokenizers import kinds
    from mlm.inference import pretrained_io
    from mlm.training.run import resolution

    tokenizer = kinds.load_tokenizer_folder("learnt", tokenizer_folder)
    cfg = resolution.resolve(
        fields.override(
            config.Config(),
            {
                "model.size": "mini",
                "model.norm_placement": "post",
                "model.norm_eps": 1e-12,
                "pack.seq_len": 512,
                "tokenizer.vocab_size": tokenizer.vocab_size,
                "data.path": text,
            },
        )
    )
    params = models.MODELS["transformer"].build(cfg.model, tokenizer.vocab_size).init(jax.random.key(0))
    model_folder = str(Path(folder, "model"))
    pretrained_io.build_language_model(cfg, tokenizer, params).save_pretrained(model_folder)
    sentences = [
        sentence
        for sentence in dict.fromkeys(corpus.split_sentences(Path(text).read_text()))
        if 4 <= len(sentence.split()) <= 300 and MASK not in sentence
    ]
    order = np.random.default_rng(0).permutation(len(sentences))
    chosen = [sentences[i] for i in order[: NUM_FILL + NUM_EMBED]]
    return model_folder, [_mask_word(sentence) for sentence in chosen[:NUM_FILL]], chosen[NUM_FILL:]


def _mask_word(sentence: str) -> str:
    words = sentence.split()
    return " ".join([*words[: len(words) // 2], MASK, *words[len(words) // 2 + 1 :]])


@functools.cache
def _load_mlm(folder):
    import mlm

    return mlm.load(folder)


def fill_with_mlm(folder: str, texts: list[str]) -> list[list[str]]:
    return [[filling.token for filling in masks[0]] for masks in _load_mlm(folder).fill_mask(texts, top_k=TOP_K)]


def embed_with_mlm(folder: str, texts: list[str]) -> np.ndarray:
    return _load_mlm(folder).encode(texts)


@functools.cache
def _load_pipeline(folder):
    import transformers

    return transformers.pipeline("fill-mask", model=folder, tokenizer=folder)


def fill_with_pipeline(folder: str, batch_size: int, texts: list[str]) -> list[list[str]]:
    """transformers' pipeline with this batch size."""
    import torch

    with torch.inference_mode():
        fillings = _load_pipeline(folder)(texts, top_k=TOP_K, batch_size=batch_size)
    return [[one["token_str"] for one in each] for each in fillings]


@functools.cache
def _load_encoder(folder):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()


def embed_with_torch(folder: str, batch_size: int, texts: list[str]) -> np.ndarray:
    """As sentence-transformers: longest texts first, batches padded to their longest text, mean over tokens."""
    import torch

    tokenizer, encoder = _load_encoder(folder)
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    embedding_NxD = np.empty((len(texts), encoder.config.hidden_size), np.float32)
    with torch.inference_mode():
        for first in range(0, len(order), batch_size):
            indices = order[first : first + batch_size]
            inputs = tokenizer(
                [texts[number] for number in indices], padding=True, truncation=True, return_tensors="pt"
            )
            h_BxLxD = encoder(**inputs).last_hidden_state
            mask_BxLx1 = inputs["attention_mask"][..., None].to(h_BxLxD.dtype)
            embedding_NxD[indices] = ((h_BxLxD * mask_BxLx1).sum(1) / mask_BxLx1.sum(1)).numpy()
    return embedding_NxD
