"""How good a run's translations are: BLEU and chrF of what a beam finds beside held-out sources (extra `translate`)."""
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mlm.base import config, errors, types
from mlm.base.special import CLS, NUM_SPECIAL, UNK
from mlm.data.rows import aligned as rows
from mlm.data.rows import loader, pack
from mlm.data.text import aligned
from mlm.evaluation.evaluations import EvaluationCase
from mlm.inference import decoding
from mlm.train.run import directory
from mlm.train.run.trained_run import Trained
from mlm.train.step import parallel, program

FORMAT = 1
SPLITS = {"dev": "validation", "test": "test"}
RESAMPLED = 1000      # times, for BLEU's interval
NORMS = (
    "mean",
    "none",
)  # what a text's log-probability is divided by (mlm/inference/beam_search.py), where several are compared


def can(cfg: config.Config) -> str:
    return "" if cfg.data.corpus == "aligned" else f"config.data.corpus is {cfg.data.corpus}, not aligned"


def due(cfg: config.Config, beams: Sequence[int]) -> list[EvaluationCase]:
    """What these beams are asked of a run's held-out pairs: those of its test split, of dev where it has none."""
    split = "test" if cfg.data.parallel.test else "dev"
    return parts(split, {"split": split, "max_rows": cfg.eval.max_examples}, beams)


def of_pairs(name: str, pairs: Sequence[aligned.Pair], beams: Sequence[int]) -> list[EvaluationCase]:
    """The same of pairs of one's own."""
    return parts(name, {"pairs": [list(pair) for pair in pairs]}, beams)


def parts(name: str, of: Mapping[str, Any], beams: Sequence[int]) -> list[EvaluationCase]:
    """A part for each beam, and for each way of comparing its texts, where there are several to compare."""
    made = []
    for width in beams:
        for norm in NORMS if width > 1 else ("none",):
            about = {"of": name, "beam": width, "normalise": norm}
            called = f"{name}-beam{width}" + (f"-{norm}" if width > 1 else "")
            made.append(EvaluationCase("translation", called, about | dict(of) | {"format": FORMAT}, about))
    return made


def ask(run: Trained, part: EvaluationCase, told) -> dict:
    """"bleu" with its error and interval, "chrf", both with their signatures; "brevity", the translations' length over
    the references'; "pairs", and how many sources were "cut". What was found is kept in a file of predictions."""
    metrics()  # told before the long work
    pairs = _pairs(run, part)
    texts, cut = translations(run, [pair.source for pair in pairs], part.asked["beam"], part.asked["normalise"])
    told()
    if not parallel.is_primary():
        return {}
    directory.write_predictions(run.cfg.workdir, part.name, lines(pairs, texts))
    return {"pairs": len(pairs), "cut": cut, **scored(texts, [pair.target for pair in pairs], run.cfg.eval.mask_seed)}


def lines(pairs: Sequence[aligned.Pair], texts: Sequence[str]) -> Iterator[dict]:
    for pair, text in zip(pairs, texts, strict=True):
        yield {**pair._asdict(), "translation": text}


def _pairs(run, part) -> list[aligned.Pair]:
    if "pairs" in part.asked:
        return [aligned.Pair(*pair) for pair in part.asked["pairs"]]
    told = pack.told(run.cfg, run.packed(), SPLITS[part.asked["split"]])
    return [aligned.Pair(**pair) for pair in told][:part.asked["max_rows"] or None]


def translations(run: Trained, texts: Sequence[str], width: int, normalise: str) -> tuple[list[str], int]:
    """The best translation of each text that a beam of this width finds, and how many of the texts were cut.

    None is longer than rows of training are. Texts of like length are translated together.
    """
    cfg = run.cfg
    columns, cut = rows.sources(run.tokenizer, texts, cfg.pack.source_len)
    by_length = np.argsort((columns["source_segments"] > 0).sum(1), kind="stable")
    begun = {"ids": np.full((len(texts), 1), CLS), "segments": np.ones((len(texts), 1), int),
             "positions": np.zeros((len(texts), 1), int)}
    split = begun | {name: column[by_length] for name, column in columns.items()}
    answer = run.program.run.per_row(best, run.program.model, cfg.pack.seq_len, width, normalise, whole=True)
    batches = loader.eval_batches(split, batch_size=cfg.eval.batch_size, **parallel.process_slice())
    found = [answer(run.state, run.program.run.put_batch(batch), program.frozen(cfg)) for batch in batches]
    ids_NxT = np.concatenate(found)[:len(texts)]
    made = [""] * len(texts)
    for place, ids_T in zip(by_length, ids_NxT, strict=True):
        made[place] = run.tokenizer.decode([int(i) for i in ids_T if i >= NUM_SPECIAL or i == UNK])
    return made, cut


def best(model: types.Model, room: int, width: int, normalise: str, params, batch: types.Batch, knobs):
    """ids_BxT of the best text beside each source."""
    found = decoding.translate(model, params, batch.source, room=room, width=width, normalise=normalise)
    return found.ids_BxWxT[:, 0]


def metrics():
    """sacrebleu's module. Raises ConfigError where it is not installed."""
    try:
        from sacrebleu import metrics
    except ImportError:
        raise errors.ConfigError("sacrebleu: expected to be installed, to judge translations: "
                                 "pip install 'mlm[translate]'") from None
    return metrics


def scored(texts: Sequence[str], references: Sequence[str], seed: int) -> dict:
    """Corpus BLEU (Papineni et al. 2002) and chrF (Popovic 2015) of translations, as sacrebleu has them (Post 2018).

    On its scale, to 100. The error and the 95% interval of BLEU are those of as many pairs drawn again and again (Koehn
    2004), of which sacrebleu counts each once.
    """
    bleu, chrf = metrics().BLEU(), metrics().CHRF()
    each = [metrics().BLEU(effective_order=True).sentence_score(*pair) for pair in zip(
        texts, ([reference] for reference in references), strict=True)]
    counts_Nx10 = np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in each], np.int64)
    drawn_RxN = np.random.default_rng(seed).multinomial(len(each), [1 / len(each)] * len(each), RESAMPLED)
    drawn = [bleu.compute_bleu(sums[:4], sums[4:8], *sums[8:], smooth_method="exp").score
             for sums in (drawn_RxN @ counts_Nx10).tolist()]
    whole = bleu.corpus_score(texts, [references])
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"bleu": whole.score, "bleu_se": float(np.std(drawn)), "bleu_low": float(low), "bleu_high": float(high),
            "brevity": whole.sys_len / max(1, whole.ref_len), "signature": str(bleu.get_signature()),
            "chrf": chrf.corpus_score(texts, [references]).score, "chrf_signature": str(chrf.get_signature())}
