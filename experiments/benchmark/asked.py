"""What part use asks, by the project and by Hugging Face's ways in torch, each in a process of its own."""
import functools
from pathlib import Path

import numpy as np

from mlm.base.special import SPECIAL

FILL, EMBED = 200, 2000  # sentences
TOP = 5
MASK = SPECIAL[-1]


def prepare(folder: str, text: str, learnt: str) -> tuple[str, list[str], list[str]]:
    """Writes a model of size mini, its parameters drawn, as a folder that both sides read; returns that and what is
    asked: FILL sentences with a word hidden, EMBED sentences of mixed lengths.
    """
    import jax

    from mlm import models
    from mlm.base import config, fields
    from mlm.data.text import corpus
    from mlm.data.tokenizers import kinds
    from mlm.inference import pretrained_io
    from mlm.train import resolution

    tokenizer = kinds.given("learnt", learnt)
    cfg = resolution.resolve(fields.override(config.Config(), {
        "model.size": "mini", "model.norm_placement": "post", "model.norm_eps": 1e-12, "pack.seq_len": 512,
        "tokenizer.vocab_size": tokenizer.vocab_size, "data.path": text}))
    params = models.MODELS["transformer"].build(cfg.model, tokenizer.vocab_size).init(jax.random.key(0))
    written = str(Path(folder, "model"))
    pretrained_io.write(pretrained_io.joined(cfg, tokenizer, params), written)
    found = [sentence for sentence in dict.fromkeys(corpus.sentences(Path(text).read_text()))
             if 4 <= len(sentence.split()) <= 300 and MASK not in sentence]
    drawn = np.random.default_rng(0).permutation(len(found))
    chosen = [found[i] for i in drawn[:FILL + EMBED]]
    return written, [_hidden(sentence) for sentence in chosen[:FILL]], chosen[FILL:]


def _hidden(sentence: str) -> str:
    words = sentence.split()
    return " ".join([*words[:len(words) // 2], MASK, *words[len(words) // 2 + 1:]])


@functools.cache
def _ours(folder):
    import mlm
    return mlm.open(folder)


def fill_by_ours(folder: str, texts: list[str]) -> list[list[str]]:
    return [[filling.token for filling in masks[0]] for masks in _ours(folder).fill(texts, top=TOP)]


def embed_by_ours(folder: str, texts: list[str]) -> np.ndarray:
    return _ours(folder).embed(texts)


@functools.cache
def _pipeline(folder):
    import transformers
    return transformers.pipeline("fill-mask", model=folder, tokenizer=folder)


def fill_by_pipeline(folder: str, batch_size: int, texts: list[str]) -> list[list[str]]:
    """transformers' pipeline, `batch_size` texts at once."""
    import torch

    with torch.inference_mode():
        found = _pipeline(folder)(texts, top_k=TOP, batch_size=batch_size)
    return [[one["token_str"] for one in each] for each in found]


@functools.cache
def _encoder(folder):
    import transformers
    return transformers.AutoTokenizer.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()


def embed_by_sorting(folder: str, batch_size: int, texts: list[str]) -> np.ndarray:
    """As sentence-transformers does: the longest texts first, a batch padded to its longest, the mean over tokens."""
    import torch

    tokenizer, encoder = _encoder(folder)
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    found = np.empty((len(texts), encoder.config.hidden_size), np.float32)
    with torch.inference_mode():
        for first in range(0, len(order), batch_size):
            mine = order[first:first + batch_size]
            given = tokenizer([texts[number] for number in mine], padding=True, truncation=True, return_tensors="pt")
            h_BxLxD = encoder(**given).last_hidden_state
            there_BxLx1 = given["attention_mask"][..., None].to(h_BxLxD.dtype)
            found[mine] = ((h_BxLxD * there_BxLx1).sum(1) / there_BxLx1.sum(1)).numpy()
    return found
