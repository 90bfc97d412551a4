"""Part generation: a GPT-2 of size small continues 32 prompts to 128 tokens by greedy decoding."""

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.benchmark import peers, side_processes, timing

NUM_PROMPTS, PROMPT_LENGTH, LENGTH, VOCAB_SIZE = 32, 8, 128, 8192
SECONDS = 25  # of rounds
PEER_OPTIONS = {
    "sdpa": {},
    "eager": {},
    "sdpa, static cache": {"cache_implementation": "static"},
}  # options of the peer's generate


def measure() -> Iterator[dict]:
    missing = peers.find_missing("torch", "transformers")
    if missing:
        print(f"transformers' generate is left out: {missing}")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        prepare_model(folder)

        def side(job, *given, allocator=False):
            process = stack.enter_context(side_processes.open_process(side_processes.ALL_CORES, tune_malloc=allocator))
            return lambda: process.submit(job, folder, *given).result()

        sides = {"ours": side(generate_with_mlm, allocator=True)}
        if not missing:
            peer_sides = {option: side(generate_with_transformers, option) for option in PEER_OPTIONS}
            times = timing.measure_times(peer_sides, seconds=0, min_rounds=2, warm_up=1)
            for option, side_R in times.items():
                print(f"  trial: transformers' generate, {option}: {np.median(side_R):,.2f} s", flush=True)
            best = min(times, key=lambda option: np.median(times[option]))
            sides[f"transformers' generate, {best}"] = peer_sides[best]
            if np.mean(sides["ours"]() == peer_sides[best]()) < 0.98:
                raise RuntimeError("the two sides generate different texts")
        yield from timing.make_peer_rows(
            f"{NUM_PROMPTS} texts of {LENGTH} tokens",
            "tokens/s",
            timing.measure_times(sides, SECONDS, warm_up=1),
            work=NUM_PROMPTS * (LENGTH - PROMPT_LENGTH),
        )


def prepare_model(folder: str, size: str = "small") -> None:
    """Writes a GPT-2 of this size with random parameters as a folder that both sides read."""
    import jax

    from mlm import models
    from mlm.base import config, fields
    from mlm.base.special import SPECIAL_TOKENS
    from mlm.data.tokenizers import kinds
    from mlm.inference import pretrained_io
    from mlm.training.run import resolution

    words = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(VOCAB_SIZE - len(SPECIAL_TOKENS)))]
    tokenizer = kinds.KINDS["words"].build_tokenizer("\n".join(words).encode())
    cfg = resolution.resolve(
        fields.override(
            config.Config(),
            {
                "objective": "causal",
                "model.size": size,
                "model.positions": "learned",
                "model.embed_norm": False,
                "model.activation": "gelu_tanh",
                "model.lm_head": "linear",
                "model.type_vocab_size": 0,
                "model.norm_eps": 1e-5,
                "model.max_positions": LENGTH,
                "model.init_std": 0.0,
                "pack.seq_len": LENGTH,
                "data.path": "a",
                "tokenizer.vocab_size": VOCAB_SIZE,
            },
        )
    )
    params = models.MODELS["transformer"].build(cfg.model, VOCAB_SIZE).init(jax.random.key(0))
    pretrained_io.build_language_model(cfg, tokenizer, params).save_pretrained(str(Path(folder, "model")))
    np.save(
        Path(folder, "prompts.npy"),
        np.random.default_rng(0).integers(len(SPECIAL_TOKENS), VOCAB_SIZE, (NUM_PROMPTS, PROMPT_LENGTH)),
    )


@functools.cache
def _make_mlm_generate(folder):
    import jax

    import mlm
    from mlm.inference import decoding

    model = mlm.load(str(Path(folder, "model")))
    ids_BxL = np.load(Path(folder, "prompts.npy")).astype(np.int32)
    generate = jax.jit(lambda params: decoding.continue_prompts(model.model, params, ids_BxL, cache_len=LENGTH).ids_BxT)
    return lambda: np.asarray(generate(model.params))[:, : LENGTH - PROMPT_LENGTH]


def generate_with_mlm(folder: str) -> np.ndarray:
    return _make_mlm_generate(folder)()


@functools.cache
def _make_peer_generate(folder, option):
    import torch
    import transformers

    from experiments.benchmark import torch_step

    model = transformers.AutoModelForCausalLM.from_pretrained(
        Path(folder, "model"), attn_implementation=option.partition(",")[0]
    )
    model = model.eval().to(torch_step.DEVICE)
    ids = torch.from_numpy(np.load(Path(folder, "prompts.npy"))).to(torch_step.DEVICE)

    def generate():
        with torch.inference_mode():
            return model.generate(
                ids, attention_mask=torch.ones_like(ids), max_length=LENGTH, do_sample=False, **PEER_OPTIONS[option]
            )[:, PROMPT_LENGTH:].numpy(force=True)

    return generate


def generate_with_transformers(folder: str, option: str) -> np.ndarray:
    return _make_peer_generate(folder, option)()
