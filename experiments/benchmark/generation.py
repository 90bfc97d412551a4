"""Part generation: 32 prompts continued to 128 tokens by the likeliest after the other, by a GPT-2 of size small."""
import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.benchmark import apart, peers, timing

ROWS, PROMPT, LENGTH, VOCAB = 32, 8, 128, 8192
SECONDS = 25         # of rounds
WAYS = {"sdpa": {}, "eager": {}, "sdpa, static cache": {"cache_implementation": "static"}}  # the peer's


def rows() -> Iterator[dict]:
    why = peers.absent("torch", "transformers")
    if why:
        print(f"transformers' generate is left out: {why}")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        prepare(folder)

        def side(job, *given, allocator=False):
            process = stack.enter_context(apart.process(apart.ALL, allocator=allocator))
            return lambda: process.submit(job, folder, *given).result()

        sides = {"ours": side(by_ours, allocator=True)}
        if not why:
            tried = {way: side(by_theirs, way) for way in WAYS}
            times = timing.measure(tried, seconds=0, least=2, warm_up=1)
            for way, side_R in times.items():
                print(f"  trial: transformers' generate, {way}: {np.median(side_R):,.2f} s", flush=True)
            best = min(times, key=lambda way: np.median(times[way]))
            sides[f"transformers' generate, {best}"] = tried[best]
            if np.mean(sides["ours"]() == tried[best]()) < 0.98:
                raise RuntimeError("the two sides do not find the same texts")
        yield from timing.against(f"{ROWS} texts of {LENGTH} tokens", "tokens/s", timing.measure(
            sides, SECONDS, warm_up=1), work=ROWS * (LENGTH - PROMPT))


def prepare(folder: str) -> None:
    """Writes a GPT-2 whose parameters are drawn, as a folder that both sides read."""
    import jax

    from mlm import models
    from mlm.base import config, fields
    from mlm.base.special import SPECIAL
    from mlm.data.tokenizers import kinds
    from mlm.inference import pretrained_io
    from mlm.train import resolution

    words = [*SPECIAL, *(f"w{number}" for number in range(VOCAB - len(SPECIAL)))]
    tokenizer = kinds.KINDS["words"].restore("\n".join(words).encode())
    cfg = resolution.resolve(fields.override(config.Config(), {
        "objective": "causal", "model.size": "small", "model.embed_norm": False, "model.activation": "gelu_tanh",
        "model.lm_head": "plain", "model.type_vocab_size": 0, "model.norm_eps": 1e-5, "model.max_positions": LENGTH,
        "model.init_std": 0.0, "pack.seq_len": LENGTH, "data.path": "a", "tokenizer.vocab_size": VOCAB}))
    params = models.MODELS["transformer"].build(cfg.model, VOCAB).init(jax.random.key(0))
    pretrained_io.write(pretrained_io.joined(cfg, tokenizer, params), str(Path(folder, "model")))
    np.save(Path(folder, "prompts.npy"), np.random.default_rng(0).integers(len(SPECIAL), VOCAB, (ROWS, PROMPT)))


@functools.cache
def _ours(folder):
    import jax

    import mlm
    from mlm.inference import decoding, masked_queries
    model = mlm.open(str(Path(folder, "model")))
    ids_BxL = np.load(Path(folder, "prompts.npy")).astype(np.int32)
    find = jax.jit(lambda params: decoding.greedy(model.model, params, masked_queries.text(ids_BxL),
                                                  room=LENGTH).ids_BxT)
    return lambda: np.asarray(find(model.params))[:, :LENGTH - PROMPT]


def by_ours(folder: str) -> np.ndarray:
    return _ours(folder)()


@functools.cache
def _theirs(folder, way):
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(
        Path(folder, "model"), attn_implementation=way.partition(",")[0]).eval()
    ids = torch.from_numpy(np.load(Path(folder, "prompts.npy")))

    def find():
        with torch.inference_mode():
            return model.generate(ids, attention_mask=torch.ones_like(ids), max_length=LENGTH, do_sample=False,
                                  **WAYS[way])[:, PROMPT:].numpy()

    return find


def by_theirs(folder: str, way: str) -> np.ndarray:
    return _theirs(folder, way)()
