"""Texts that a model writes: behind a prompt, in the places of [MASK]s, or beside a source."""
from collections.abc import Sequence
from numbers import Integral
from typing import NamedTuple

import jax
import numpy as np

from mlm import models, objectives
from mlm.base import errors
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP, UNK
from mlm.data.rows import aligned, loader
from mlm.inference import batching, beam_search, decoding, iterative_unmasking
from mlm.inference.masked_queries import text


class Written(NamedTuple):
    text: str                 # the prompt's tokens among them
    nats: float               # log P of what was written
    tokens: int               # how many those are, the one that ends a text among them


def write(model, prompts: Sequence[str], *, beams: int = 1, normalise: str = "mean", temperature: float = 0.0,
          top_k: int = 0, top_p: float = 1.0, length: int = 0, count: int = 1, seed: int = 0, by: str = "",
          at_once: int = 1) -> list[list[Written]]:
    """For each prompt `count` texts of an `Opened` model, of at most `length` tokens in all (0: of its longest row).

    One that was trained to tell a token by those to its left (causal, hybrid) goes on with a prompt, which may be "":
    the likeliest token after the other, the best `count` texts of `beams` beams as beam.search has them, or from
    temperature > 0 on drawn ones as sample.drawn has them; after rows of a stream, which neither begin nor end, some
    prompt up to `length`. Another fills the [MASK]s of a prompt, or as many behind it as `length` holds, `at_once`
    places in a pass, `by` "left" (to right) or "confidence" (the surest first). The same seed gives the same texts; a
    prompt's depend on no other prompt. Raises ConfigError for what a model cannot do.
    """
    cfg = model.cfg
    errors.require(objectives.seen(cfg) not in ("row", "all") and model.output, "generate", cfg.objective,
                  "a run that was trained to tell tokens")
    errors.require(not models.source(cfg), "generate", cfg.model.family, "translate, for a model that reads a source"
                  if cfg.data.corpus == "aligned" else "a model that reads no source")
    _whole(length=length, top_k=top_k, seed=seed, count=count, beam=beams, at_once=at_once)
    errors.require_number("seed", seed, 0, 2**32 - 1)
    errors.require_number("length", length, 0, model.length)
    errors.require_number("temperature", temperature, 0, 100)
    errors.require_number("top_k", top_k, 0, model.tokenizer.vocab_size)
    errors.require_number("top_p", top_p, 0, 1, low_open=True)
    for name, value in (("count", count), ("beam", beams), ("at_once", at_once)):
        errors.require_at_least(1, name, value)
    left = bool({"left", "sides"} & {*objectives.losses(cfg).values()})
    errors.require(not left or model.model.init_cache is not None, "generate", cfg.model.family,
                  "a model that is read a token at a time")
    least = 2 if left else 1 if cfg.pack.mode == "stream" else 3
    errors.require(length == 0 or length >= least, "length", length, f"at least {least} tokens, with those that begin "
                  "and end a text; or 0, for as many as a row holds")
    orders = ("left",) if left else iterative_unmasking.ORDERS
    errors.require(by in ("", *orders), "by", by, f"{' or '.join(orders)}, since config.objective is {cfg.objective}")
    errors.require(temperature == 0 or beams == 1, "temperature", temperature, "0, with beams")
    errors.require(temperature > 0 or count <= beams, "count", count,
                   f"at most {beams}, the beams; or a temperature to " "draw by")
    errors.require(left or beams == 1, "beam", beams, "1, where [MASK]s are filled")
    rows = _prompts(model, prompts, length or model.length, left=left)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), i // count), i % count))(
        np.arange(len(rows) * count))
    how = (np.float32(max(temperature, 1e-3)), np.int32(top_k), np.float32(top_p))
    if beams > 1:
        return _by_beams(model, rows, length or model.length, beams, normalise, count)
    each = [row for row in rows for _ in range(count)]
    found = _one_way(model, each, length or model.length, keys, how, drawn=temperature > 0) if left else _filled(
        model, each, keys, how, at_once, by or "confidence", drawn=temperature > 0)
    return [found[i * count:(i + 1) * count] for i in range(len(rows))]


def translate(model, sources: Sequence[str], *, beams: int = 4, normalise: str = "mean", count: int = 1
              ) -> list[list[Written]]:
    """For each source the best `count` texts beside it, none longer than the rows of training are."""
    cfg = model.cfg
    errors.require(models.source(cfg), "translate", cfg.model.family, "a model that reads a source (encoder_decoder)")
    errors.require(cfg.data.corpus == "aligned", "translate", cfg.objective, "a run of aligned text "
                  "(config.data.corpus)")
    _whole(beam=beams, count=count)
    errors.require_one_of("normalise", normalise, beam_search.NORMS)
    errors.require_at_least(1, "beam", beams)
    errors.require_number("count", count, 1, beams)
    longest = model.about.source_length
    columns, _ = aligned.sources(model.tokenizer, list(sources), longest)
    rows = [ids[there > 0].tolist() for ids, there in zip(columns["source_ids"], columns["source_segments"],
                                                           strict=True)]
    answer, found = model.compiled(_beside, model.length, beams, normalise), [[] for _ in rows]
    for mine, ids_BxS in batching.batched(rows, longest, max(1, 4 * batching.fast(longest) // beams)):
        best = jax.device_get(answer(model.params, ids_BxS))
        for row, number in enumerate(mine):
            found[number] = _best(model, [CLS], best, row, count)
    return found


def _whole(**values) -> None:
    for name, value in values.items():
        errors.require(isinstance(value, Integral), name, value, "a whole number")


def _prompts(model, texts, length, *, left) -> list[list[int]]:
    """As rows stood in training: those of a stream have neither [CLS] nor [SEP]."""
    rows, stream = [], model.cfg.pack.mode == "stream"
    end = [] if stream else [SEP]
    for each in texts:
        errors.require(not left or batching.HIDDEN not in each, "text", each, f"one without {batching.HIDDEN}, since a "
                      f"{model.cfg.objective} run goes on from the left")
        row = batching.encode(model.tokenizer, each, hidden=not left)[stream:-1]
        errors.require(not left or len(row) > 0, "text", each,
                       "a text to go on with, since rows of a stream begin with " "no token of their own")
        if not left:
            row += [MASK] * (0 if MASK in row else length - len(end) - len(row)) + end
            errors.require(MASK in row and len(row) <= length, "text", each,
                           f"one with {batching.HIDDEN}, or with room " f"behind it, within {length} tokens")
        errors.require(not left or len(row) < length, "text", each, f"fewer than {length - 1 + stream} tokens, so that "
                      "there is room behind it")
        rows.append(row)
    return rows


def _never(model) -> tuple[int, ...]:
    return (*decoding.NEVER, SEP) if model.cfg.pack.mode == "stream" else decoding.NEVER


def _room(model, length) -> int:
    """As few values as lengths of rows: each is compiled."""
    return next(room for room in loader.lengths(model.length) if room >= length)


def _batches(model, rows, room, each: int = 1):
    """`batches.batched` of as many rows as caches of so much room, `each` for a row, may be long together."""
    size, order = max(1, 4 * batching.fast(room) // each), sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    for first in range(0, len(rows), size):
        chunk = order[first:first + size]
        for mine, ids_BxL in batching.batched([rows[i] for i in chunk], model.length, size):
            yield [chunk[i] for i in mine], ids_BxL


def _one_way(model, rows, length, keys, how, *, drawn) -> list[Written]:
    room, found = _room(model, length), [None] * len(rows)
    answer = model.compiled(_followed, room, drawn, _never(model))
    for mine, ids_BxL in _batches(model, rows, room):
        key_B = keys[np.array([*mine, *[mine[-1]] * (len(ids_BxL) - len(mine))])]
        made = jax.device_get(answer(model.params, ids_BxL, np.int32(length), key_B, *how))
        for row, number in enumerate(mine):
            found[number] = _written(model, rows[number], made.ids_BxT[row], made.length_B[row], made.log_prob_B[row])
    return found


def _by_beams(model, rows, length, beams, normalise, count) -> list[list[Written]]:
    room, found = _room(model, length), [[] for _ in rows]
    answer = model.compiled(_best_of, room, beams, normalise, _never(model))
    for mine, ids_BxL in _batches(model, rows, room, beams):
        best = jax.device_get(answer(model.params, ids_BxL, np.int32(length)))
        for row, number in enumerate(mine):
            found[number] = _best(model, rows[number], best, row, count)
    return found


def _filled(model, rows, keys, how, at_once, by, *, drawn) -> list[Written]:
    answer, found = model.telling(_unmasked, by, drawn), [None] * len(rows)
    for mine, ids_BxL in model.batches(rows):
        key_B = keys[np.array([*mine, *[mine[-1]] * (len(ids_BxL) - len(mine))])]
        made_BxL, log_prob_B = jax.device_get(answer(model.params, ids_BxL, key_B, *how, np.int32(at_once)))
        for row, number in enumerate(mine):
            ids = made_BxL[row, :len(rows[number])]
            found[number] = Written(_text(model, ids), float(log_prob_B[row]), rows[number].count(MASK))
    return found


def _best(model, prompt, best, row, count):
    there = [w for w in range(count) if np.isfinite(best.score_BxW[row, w])]
    return [_written(model, prompt, best.ids_BxWxT[row, w], best.length_BxW[row, w], best.log_prob_BxW[row, w])
            for w in there]


def _written(model, prompt, ids_T, length, log_prob) -> Written:
    return Written(_text(model, [*prompt, *ids_T[:length]]), float(log_prob), int(length))


def _text(model, ids) -> str:
    return model.tokenizer.decode([int(i) for i in ids if i >= NUM_SPECIAL or i == UNK])


def _followed(model, room, drawn, never, params, ids_BxL, length, key_B, temperature, top_k, top_p):
    if drawn:
        return decoding.drawn(model, params, text(ids_BxL), None, key_B, temperature, top_k, top_p, room=room,
                              upto=length, never=never)
    return decoding.greedy(model, params, text(ids_BxL), room=room, upto=length, never=never)


def _best_of(model, room, width, normalise, never, params, ids_BxL, length):
    return decoding.beams(model, params, text(ids_BxL), room=room, width=width, normalise=normalise, upto=length,
                          never=never)


def _beside(model, room, width, normalise, params, ids_BxS):
    return decoding.translate(model, params, text(ids_BxS), room=room, width=width, normalise=normalise)


def _unmasked(model, order, drawn, params, ids_BxL, key_B, temperature, top_k, top_p, at_once):
    return iterative_unmasking.unmask(model, params, ids_BxL, key_B, temperature, top_k, top_p, at_once, order=order,
                                      draws=drawn)
