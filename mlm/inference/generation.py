"""Text generation: continues a prompt, fills its [MASK]s, or translates a source."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from mlm import models, objectives
from mlm.base import config, errors, types
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP, UNK
from mlm.data.rows import loader, parallel_text
from mlm.data.text.parallel_text import Pair
from mlm.inference import batching, decoding, forward_passes
from mlm.inference.forward_passes import make_tokens


@dataclasses.dataclass(frozen=True)
class GeneratedText:
    """A generated text.

    Attributes:
        text: the text, its prompt included.
        log_prob: log-probability of the generated tokens, nats.
        num_tokens: how many were generated, the one that ends the text included.
    """

    text: str
    log_prob: float
    num_tokens: int


class GenerationSettings(NamedTuple):
    """The arguments of `LanguageModel.generate`, which documents them."""

    max_length: int
    num_return_sequences: int
    temperature: float
    top_k: int
    top_p: float
    num_beams: int
    length_penalty: str
    unmask_order: str
    tokens_per_step: int
    seed: int


def generate_texts(model, prompts: Sequence[str], settings: GenerationSettings) -> list[list[GeneratedText]]:
    """Implements `LanguageModel.generate` for a list of prompts."""
    cfg = model.config
    visibility = objectives.get_visibility(cfg)
    predicts_tokens = visibility not in (types.Visibility.FULL, types.Visibility.CORRUPTED) and model.has_lm_head
    errors.require(predicts_tokens, "generate", cfg.objective, "a run that was trained to predict tokens")
    is_parallel = cfg.data.corpus == "parallel"
    expected = "translate, for a model that reads a source" if is_parallel else "a model that reads no source"
    errors.require(not models.reads_source(cfg), "generate", cfg.model.family, expected)
    max_length, num_beams, temperature = settings.max_length, settings.num_beams, settings.temperature
    bounds = {"max_length": (0, model.length), "top_k": (0, model.tokenizer.vocab_size), "seed": (0, 2**32 - 1)}
    bounds |= {"num_beams": (1, config.MAX_BEAMS), "num_return_sequences": (1,), "tokens_per_step": (1,)}
    for name, limits in bounds.items():
        errors.require_integer(name, getattr(settings, name), *limits)
    errors.require_number("temperature", temperature, 0, 100)
    errors.require_number("top_p", settings.top_p, 0, 1, low_open=True)
    visibilities = {*objectives.get_loss_visibilities(cfg).values()}
    is_causal = bool({types.Visibility.CAUSAL, types.Visibility.TWO_STACK} & visibilities)
    is_supported = not is_causal or model.model.init_cache is not None
    errors.require(is_supported, "generate", cfg.model.family, "a model that reads one token at a time")
    min_length = 2 if is_causal else 1 if cfg.pack.mode == "stream" else 3
    expected = f"at least {min_length} tokens, with those that begin and end a text; or 0"
    errors.require(max_length == 0 or max_length >= min_length, "max_length", max_length, expected)
    orders, order = ("left",) if is_causal else decoding.UNMASK_ORDERS, settings.unmask_order
    expected = f"{' or '.join(orders)}, since config.objective is {cfg.objective}"
    errors.require(order in ("", *orders), "unmask_order", order, expected)
    errors.require(temperature == 0 or num_beams == 1, "temperature", temperature, "0, with beams")
    count = settings.num_return_sequences
    expected = f"at most {num_beams}, the number of beams; or a temperature above 0, to sample"
    errors.require(temperature > 0 or count <= num_beams, "num_return_sequences", count, expected)
    errors.require(is_causal or num_beams == 1, "num_beams", num_beams, "1, where [MASK]s are filled")
    settings = settings._replace(max_length=max_length or model.length, unmask_order=order or "confidence")
    sequences = _encode_prompts(model, prompts, settings.max_length, is_causal=is_causal)
    if num_beams > 1:
        return _search_beams(model, sequences, settings)
    keys = _make_keys(settings.seed, len(sequences), count)
    repeated = [sequence for sequence in sequences for _ in range(count)]
    generate = _continue_prompts if is_causal else _fill_masks
    generations = generate(model, repeated, keys, settings)
    return [generations[i * count : (i + 1) * count] for i in range(len(sequences))]


def _make_keys(seed, num_prompts, num_return_sequences):
    """A random key for each text, which depends on the prompt's index and the text's index alone."""

    def make_key(i):
        prompt_key = jax.random.fold_in(jax.random.key(seed), i // num_return_sequences)
        return jax.random.fold_in(prompt_key, i % num_return_sequences)

    return jax.vmap(make_key)(np.arange(num_prompts * num_return_sequences))


def translate_texts(
    model, sources: Sequence[str], *, num_beams: int = 4, length_penalty: str = "mean", num_return_sequences: int = 1
) -> list[list[GeneratedText]]:
    """The best `num_return_sequences` translations of each source, none longer than the training sequences."""
    cfg = model.config
    expected = "a model that reads a source (encoder_decoder)"
    errors.require(models.reads_source(cfg), "translate", cfg.model.family, expected)
    errors.require(cfg.data.corpus == "parallel", "translate", cfg.data.corpus, "a run of parallel text")
    errors.require_one_of("length_penalty", length_penalty, decoding.LENGTH_PENALTIES)
    errors.require_integer("num_beams", num_beams, 1, config.MAX_BEAMS)
    errors.require_integer("num_return_sequences", num_return_sequences, 1, num_beams)
    max_len = model.dataset_info.source_len
    pairs, tokenizer = [Pair(source, "") for source in sources], batching.recognize_masks(model.tokenizer)
    encoded = parallel_text.encode_pairs(tokenizer, pairs, max_len, max_len)
    sequences, num_truncated = [pair.source for pair in encoded], sum(pair.is_truncated for pair in encoded)
    batching.warn_of_losses(num_truncated, sum(UNK in ids for ids in sequences), len(sources), max_len)
    search = {"max_len": model.length, "num_beams": num_beams, "length_penalty": length_penalty}
    translate = forward_passes.compile_pass(decoding.translate_tokens, model.model, **search)
    batch_size = max(1, 4 * batching.choose_batch_size(max_len) // num_beams)
    outputs = batching.collect_outputs(
        batching.iterate_batches(sequences, max_len, batch_size),
        lambda indices, ids_BxS: translate(model.params, make_tokens(ids_BxS)),
        len(sequences),
    )
    return [_make_best_generations(model, [CLS], best, num_return_sequences) for best in outputs]


def _encode_prompts(model, texts, max_length, *, is_causal) -> list[list[int]]:
    """The prompts as training sequences: those of a stream have neither [CLS] nor [SEP]."""
    sequences, is_stream = [], model.config.pack.mode == "stream"
    end = [] if is_stream else [SEP]
    for text in texts:
        expected = f"one without {batching.MASK_TOKEN}, since a {model.config.objective} run continues a text"
        errors.require(not is_causal or batching.MASK_TOKEN not in text, "text", text, expected)
        ids = batching.encode_text(model.tokenizer, text, allow_mask=not is_causal)[is_stream:-1]
        if is_causal:
            errors.require(len(ids) > 0, "text", text, "a text to continue, since sequences of a stream have no [CLS]")
            most = max_length - 1 + is_stream
            expected = f"fewer than {most} tokens, so that there is room behind it"
            errors.require(len(ids) < max_length, "text", text, expected)
        else:
            ids += [MASK] * (0 if MASK in ids else max_length - len(end) - len(ids)) + end
            expected = f"one with {batching.MASK_TOKEN}, or with room behind it, within {max_length} tokens"
            errors.require(MASK in ids and len(ids) <= max_length, "text", text, expected)
        sequences.append(ids)
    batching.warn_of_losses(0, sum(UNK in ids for ids in sequences), len(texts), max_length)  # a long one is refused
    return sequences


def _decode_prompts(model, sequences, settings, function, keys=None, **static) -> list:
    """The outputs of a function of decoding.py for each prompt; static: its arguments that it is compiled for.

    keys: random keys of the prompts, for a function that samples.
    """
    # One of few cache lengths, and as many sequences as caches of this length and number fit the device.
    cache_len = next(x for x in loader.list_bucket_lengths(model.length) if x >= settings.max_length)
    batch_size = max(1, 4 * batching.choose_batch_size(cache_len) // settings.num_beams)
    suppressed_ids = (*decoding.SUPPRESSED_IDS, *[SEP] * (model.config.pack.mode == "stream"))
    static |= {"cache_len": cache_len, "suppressed_ids": suppressed_ids}
    decode, max_len = forward_passes.compile_pass(function, model.model, **static), np.int32(settings.max_length)

    def iterate_batches():
        order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
        for first in range(0, len(sequences), batch_size):
            chunk = order[first : first + batch_size]
            for indices, ids_BxL in batching.iterate_batches([sequences[i] for i in chunk], model.length, batch_size):
                yield [chunk[i] for i in indices], ids_BxL

    def run_batch(indices, ids_BxL):
        sampler = {} if keys is None else {"sampler_args": _make_sampler_args(settings, keys, indices, len(ids_BxL))}
        return decode(model.params, ids_BxL, max_len=max_len, **sampler)

    return batching.collect_outputs(iterate_batches(), run_batch, len(sequences))


def _make_sampler_args(settings, keys, indices, batch_size):
    """`sampler_args` of a batch, whose padding repeats the last key; None: no sampling."""
    if settings.temperature == 0:
        return None
    key_B = keys[np.array([*indices, *[indices[-1]] * (batch_size - len(indices))])]
    temperature = max(settings.temperature, 1e-3)
    return key_B, np.float32(temperature), np.int32(settings.top_k), np.float32(settings.top_p)


def _continue_prompts(model, sequences, keys, settings) -> list[GeneratedText]:
    outputs = _decode_prompts(model, sequences, settings, decoding.continue_prompts, keys)
    return [_make_generation(model, prompt, *decoded) for prompt, decoded in zip(sequences, outputs, strict=True)]


def _search_beams(model, sequences, settings) -> list[list[GeneratedText]]:
    beams = {name: getattr(settings, name) for name in ("num_beams", "length_penalty")}
    count = settings.num_return_sequences
    outputs = _decode_prompts(model, sequences, settings, decoding.decode_beams, **beams)
    return [_make_best_generations(model, prompt, best, count) for prompt, best in zip(sequences, outputs, strict=True)]


def _fill_masks(model, sequences, keys, settings) -> list[GeneratedText]:
    unmask = forward_passes.compile_predictor(decoding.unmask_tokens, model, settings.unmask_order)

    def run_batch(indices, ids_BxL):
        sampler_args = _make_sampler_args(settings, keys, indices, len(ids_BxL))
        return unmask(model.params, ids_BxL, sampler_args, np.int32(min(settings.tokens_per_step, model.length)))

    outputs = forward_passes.run_batches(model, sequences, run_batch)
    return [
        GeneratedText(_decode_text(model, filled_L[: len(prompt)]), float(log_prob), prompt.count(MASK))
        for prompt, (filled_L, log_prob) in zip(sequences, outputs, strict=True)
    ]


def _make_best_generations(model, prompt, best, count):
    return [
        _make_generation(model, prompt, best.ids_BxWxT[beam], best.length_BxW[beam], best.log_prob_BxW[beam])
        for beam in range(count)
        if np.isfinite(best.score_BxW[beam])
    ]


def _make_generation(model, prompt, ids_T, length, log_prob) -> GeneratedText:
    return GeneratedText(_decode_text(model, [*prompt, *ids_T[:length]]), float(log_prob), int(length))


def _decode_text(model, ids) -> str:
    return model.tokenizer.decode([int(i) for i in ids if i >= NUM_SPECIAL or i == UNK])
