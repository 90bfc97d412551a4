"""Translation quality of a run: BLEU and chrF of beam search on held-out sources (extra `evaluate`)."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlm.base import config, errors, extras, types
from mlm.base.estimates import ItemInterval
from mlm.base.special import CLS, NUM_SPECIAL, UNK
from mlm.data.rows import pack
from mlm.data.rows import parallel_text as rows
from mlm.data.text import parallel_text
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.evaluation.evaluations import SPLITS, EvaluationCase, EvaluationTable, ReportProgress, get_results
from mlm.inference import decoding
from mlm.objectives import extractive_qa
from mlm.report.table import Column
from mlm.training.run.directory import RunDirectory
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

LOGGER = logging.getLogger(__name__)
FORMAT = 2
NUM_RESAMPLES = 1000  # of the bootstrap, for BLEU's interval
UNMATCHED = "\ufffd"  # a word of no translation
LENGTH_PENALTIES = ("mean", "none")  # those compared where a beam has several texts (mlm/inference/decoding.py)


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    return "" if cfg.data.corpus == "parallel" else f"config.data.corpus is {cfg.data.corpus}, not parallel"


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The cases of config.eval.beams."""
    return list_split_cases(cfg, tuple(map(int, cfg.eval.beams)))


def check(cfg: config.Config) -> None:
    """Raises ConfigError where config.eval.beams needs a package that is not installed."""
    if cfg.eval.beams:
        build_bleu(cfg.eval.bleu_tokenizer)


def read_flags(args: argparse.Namespace):
    """Reads the pairs; returns the function from a run to its cases."""
    import_sacrebleu()
    for num_beams in args.beams:
        errors.require_number("--beams", num_beams, 1, config.MAX_BEAMS)
    if not args.pairs:
        return lambda run: list_split_cases(run.cfg, args.beams)
    errors.require(len(args.pairs) < 3, "--pairs", ",".join(args.pairs), "one file, or two separated by a comma")
    paths = [Path(path) for path in args.pairs]
    pairs = {"pairs": [list(pair) for pair in parallel_text.read_pairs(paths)]}
    return lambda run: list_cases(paths[-1].name, pairs, args.beams, run.cfg.eval.bleu_tokenizer)


def list_split_cases(cfg: config.Config, beams: Sequence[int]) -> list[EvaluationCase]:
    """The cases of a run's own test split, or of dev where it has none."""
    split = "test" if cfg.data.parallel.test else "dev"
    return list_cases(split, {"split": split, "max_examples": cfg.eval.max_examples}, beams, cfg.eval.bleu_tokenizer)


def list_cases(name: str, pairs: Mapping[str, Any], beams: Sequence[int], tokenizer: str) -> list[EvaluationCase]:
    """A case for each beam width and length penalty. name: of the pairs; pairs: the inputs that identify them."""
    cases, other = [], "" if tokenizer == "13a" else f"-{tokenizer}"
    for num_beams in beams:
        for length_penalty in LENGTH_PENALTIES if num_beams > 1 else ("none",):
            search = {"pairs_name": name, "num_beams": num_beams, "length_penalty": length_penalty}
            case_name = f"{name}-beam{num_beams}" + (f"-{length_penalty}" if num_beams > 1 else "") + other
            inputs = search | dict(pairs) | {"format": FORMAT, "bleu_tokenizer": tokenizer}
            cases.append(EvaluationCase("translation", case_name, inputs, search))
    return cases


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The scores of `compute_scores`; also writes the translations to a predictions file.

    "pairs" counts the pairs and "truncated" the truncated sources. "rewritten" counts the references that the
    tokenizer cannot give back, such as "doesn't" of WordPiece, "doesn ' t". If there are any, translations are compared
    with the references as the tokenizer writes them, and the signatures end in "refs:decoded": such scores compare runs
    of one tokenizer, not with published ones.
    """
    build_bleu(case.inputs["bleu_tokenizer"])  # fails before the long work
    if "pairs" in case.inputs:
        pairs = [parallel_text.Pair(*pair) for pair in case.inputs["pairs"]]
    else:
        records = pack.read_examples(run.cfg, run.load_data(), SPLITS[case.inputs["split"]])
        pairs = [parallel_text.Pair(**record) for record in records][: case.inputs["max_examples"] or None]
    sources = [pair.source for pair in pairs]
    texts, truncated = translate_texts(run, sources, case.inputs["num_beams"], case.inputs["length_penalty"])
    if not parallel.is_primary():
        return {}
    translated = ({**pair._asdict(), "translation": text} for pair, text in zip(pairs, texts, strict=True))
    RunDirectory(run.cfg.workdir).write_predictions(case.name, translated)
    references, rewritten = decode_references(run.tokenizer, [pair.target for pair in pairs])
    scores = compute_scores(texts, references, run.cfg.eval.mask_seed, case.inputs["bleu_tokenizer"])
    if rewritten:
        scores |= {name: f"{scores[name]}|refs:decoded" for name in ("signature", "chrf_signature")}
    return {"pairs": len(pairs), "truncated": truncated, "rewritten": rewritten, **scores}


def decode_references(tokenizer: Tokenizer, references: Sequence[str]) -> tuple[list[str], int]:
    """The references as the tokenizer gives them back, and how many of them differ in more than white space.

    A reference that does not differ stays as it is. An unknown piece of a reference matches no piece of a translation.
    """
    decoded = [
        reference if text.split() == reference.split() else text.replace(tokenizer.pieces[UNK], UNMATCHED)
        for ids, reference in zip(tokenizer.encode_batch(list(references)), references, strict=True)
        for text in [tokenizer.decode(ids)]
    ]
    return decoded, sum(one is not other for one, other in zip(decoded, references, strict=True))


def translate_texts(
    run: TrainedRun, texts: Sequence[str], num_beams: int, length_penalty: str
) -> tuple[list[str], int]:
    """The best translation of each text by beam search, and how many of the texts were truncated.

    No translation is longer than the training sequences. Texts of similar length share a batch.
    """
    columns, truncated = rows.encode_sources(run.tokenizer, texts, run.cfg.pack.source_len)
    order_N = np.argsort((columns["source_segments"] > 0).sum(1), kind="stable")
    targets = {"ids": CLS, "segments": 1, "positions": 0}
    split = {name: np.full((len(texts), 1), value) for name, value in targets.items()}
    split |= {name: column[order_N] for name, column in columns.items()}
    search = run.cfg.pack.seq_len, num_beams, length_penalty
    ids_NxT = run.map_examples(find_best_translation, *search, split=split, gather_params=True)
    translations = [""] * len(texts)
    for index, ids_T in zip(order_N, ids_NxT, strict=True):
        translations[index] = run.tokenizer.decode([int(i) for i in ids_T if i >= NUM_SPECIAL or i == UNK])
    return translations, truncated


def find_best_translation(
    model: types.Model, max_len: int, num_beams: int, length_penalty: str, params, batch: types.Batch, hparams
):
    """ids_BxT of each source's best translation."""
    assert batch.source is not None
    result = decoding.translate_tokens(
        model, params, batch.source, max_len=max_len, num_beams=num_beams, length_penalty=length_penalty
    )
    return result.ids_BxWxT[:, 0]


def import_sacrebleu():
    """sacrebleu's metrics module. Raises ConfigError where it is not installed."""
    return extras.import_extra("sacrebleu", "evaluate", "BLEU").metrics


def build_bleu(tokenizer: str, **options):
    """sacrebleu's BLEU with one of its tokenizers. Raises ConfigError where that is not installed."""
    expected = "one of sacrebleu's tokenizers with its package and files"
    with errors.explain(f"config.eval.bleu_tokenizer = {tokenizer!r}", expected, RuntimeError, OSError):
        return import_sacrebleu().BLEU(tokenize=tokenizer, **options)


def compute_scores(texts: Sequence[str], references: Sequence[str], seed: int, tokenizer: str = "13a") -> dict:
    """Corpus BLEU (Papineni et al. 2002) and chrF (Popovic 2015) of translations, by sacrebleu (Post 2018).

    Both range from 0 to 100, with sacrebleu's "signature". "brevity" is the translations' length over the references'.
    BLEU's standard error and 95% interval come from a bootstrap over pairs (Koehn 2004).
    """
    letters = "".join("".join(references).split())
    if tokenizer == "13a" and 2 * sum(map(extractive_qa.is_unspaced, letters)) > len(letters):
        LOGGER.warning("config.eval.bleu_tokenizer = '13a' takes text without spaces for one word: zh | char do not")
    bleu, sentence_bleu = build_bleu(tokenizer), build_bleu(tokenizer, effective_order=True)
    chrf = import_sacrebleu().CHRF()
    sentences = [sentence_bleu.sentence_score(text, [one]) for text, one in zip(texts, references, strict=True)]
    counts = [[*sentence.counts, *sentence.totals, sentence.sys_len, sentence.ref_len] for sentence in sentences]
    counts_Nx10 = np.array(counts, np.int64)
    rng = np.random.default_rng(seed)
    weight_RxN = rng.multinomial(len(sentences), [1 / len(sentences)] * len(sentences), NUM_RESAMPLES)
    bleu_samples = [
        bleu.compute_bleu(sums[:4], sums[4:8], *sums[8:], smooth_method="exp").score
        for sums in (weight_RxN @ counts_Nx10).tolist()
    ]
    corpus = bleu.corpus_score(texts, [references])
    low, high = np.quantile(bleu_samples, (0.025, 0.975))
    return {
        "bleu": corpus.score,
        "bleu_se": float(np.std(bleu_samples)),
        "bleu_low": float(low),
        "bleu_high": float(high),
        "brevity": corpus.sys_len / max(1, corpus.ref_len),
        "signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(texts, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
    }


def build_tables(contents: Mapping[str, Any]) -> list[EvaluationTable]:
    """A table with a row for each search."""
    rows = [
        {**result, "bleu": ItemInterval(result["bleu"], result["bleu_low"], result["bleu_high"])}
        for result in get_results(contents, "translation").values()
    ]
    columns = [
        Column("pairs_name", "translated"),
        Column("pairs", "pairs", ",d"),
        Column("num_beams", "beams", "d"),
        Column("length_penalty", "length penalty"),
        Column("bleu", "BLEU", ".1f"),
        Column("chrf", "chrF", ".1f"),
        Column("brevity", "length ratio", ".3f"),
        Column("signature", "sacrebleu"),
    ]
    return [EvaluationTable(rows, columns)]
