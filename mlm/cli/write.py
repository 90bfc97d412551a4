"""mlm.cli.use generate and translate: texts that a model writes."""
from collections.abc import Iterator

from absl import flags

_BEAM = flags.DEFINE_integer("beam", 1, "generate, translate: beams; 1: the likeliest token after the other.",
                             lower_bound=1)
_NORMALISE = flags.DEFINE_enum("normalise", "mean", ["none", "mean", "wu"], "generate, translate, with beams: what a "
                               "text's log-probability is divided by: nothing, its length, ((5 + length) / 6)^0.6.")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "generate: tokens are drawn, from logits over this; 0: the "
                                  "likeliest.", lower_bound=0.0)
_TOP_K = flags.DEFINE_integer("top_k", 0, "generate: drawn from so many likeliest; 0: from all.", lower_bound=0)
_TOP_P = flags.DEFINE_float("top_p", 1.0, "generate: drawn from the likeliest with this share together.",
                            lower_bound=0.0, upper_bound=1.0)
_LENGTH = flags.DEFINE_integer("length", 0, "generate: tokens in all at most; 0: as many as a row holds.",
                               lower_bound=0)
_COUNT = flags.DEFINE_integer("count", 1, "generate, translate: texts of each.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "generate: of what is drawn.", lower_bound=0,
                             upper_bound=2**32 - 1)
_BY = flags.DEFINE_enum("by", None, ["left", "confidence"], "generate, in places of [MASK]s: the order in which they "
                        "are filled, left to right or the surest first.")
_AT_ONCE = flags.DEFINE_integer("at_once", 1, "generate, in places of [MASK]s: so many filled in a pass.",
                                lower_bound=1)


def generate(model, texts: list[str]) -> Iterator[dict]:
    yield from _rows(texts, model.generate(
        texts, beams=_BEAM.value, normalise=_NORMALISE.value, temperature=_TEMPERATURE.value, top_k=_TOP_K.value,
        top_p=_TOP_P.value, length=_LENGTH.value, count=_COUNT.value, seed=_SEED.value, by=_BY.value or "",
        at_once=_AT_ONCE.value))


def translate(model, texts: list[str]) -> Iterator[dict]:
    yield from _rows(texts, model.translate(texts, beams=_BEAM.value, normalise=_NORMALISE.value, count=_COUNT.value))


def _rows(texts, found) -> Iterator[dict]:
    for asked, written in zip(texts, found, strict=True):
        for number, one in enumerate(written, 1):
            yield {"asked": asked, "number": number, "nats": one.nats, "tokens": one.tokens, "text": one.text}
