"""How far back a model that reads from the left reaches: gradients and recall by distance, and what length costs.

Letters in array names: I names that are asked for, M names of the language, W its words; others as in types.py.
"""
import time

import jax
import jax.numpy as jnp
import numpy as np

from mlm import models, objectives
from mlm.base import config, types
from mlm.base.estimates import ratio
from mlm.data.language import causal_posterior, grammar, posterior
from mlm.data.language.grammar import Grammar
from mlm.data.rows import loader
from mlm.evaluation.evaluations import EvaluationCase
from mlm.train.run.trained_run import Trained
from mlm.train.step import parallel, program

ROWS = 256                # held-out rows of which gradients and names are asked, at most
LAST = 16                 # a row's gradients are of one of so many last tokens
TOKENS = 2 ** 12          # in a step that is timed
STEPS = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, None))  # tokens between, from to
SENTENCES = ((0, 0), (1, 1), (2, 3), (4, 7), (8, None))  # sentence ends between


def can(cfg: config.Config) -> str:
    if models.source(cfg):
        return f"config.model.family is {cfg.model.family}, which reads a source"
    if cfg.model.context != "left":
        return f"config.model.context is {cfg.model.context}, not left"
    return "" if objectives.seen(cfg) == "left" else f"config.objective is {cfg.objective}, not one of next tokens"


def parts(cfg: config.Config) -> list[EvaluationCase]:
    """"gradient" and "time", and of the built-in language "recall"."""
    asked = {"rows": ROWS, "max_rows": cfg.eval.max_examples}
    names = ["gradient", "time"] + ["recall"] * (cfg.data.corpus == "language")
    return [EvaluationCase("distance", name, asked) for name in names]


def ask(run: Trained, part: EvaluationCase, told) -> dict:
    """A list of values by distance, or of "time" by length, as `gradient`, `recall` and `timed` say."""
    return {"gradient": gradient, "recall": recall, "time": timed}[part.name](run, told)


def gradient(run: Trained, told) -> dict:
    """"start" and "trained": the mean norm of the gradient of -log P of a token, by the embedding of one so many tokens
    before the state that tells it.

    One of the last LAST tokens of each row, the same of every model; "start" is of parameters as they are drawn.
    """
    drawn = run.program.run.put_state(run.program.initial(program.knobs(run.cfg)))
    found = {}
    for name, state in (("start", drawn), ("trained", run.state)):
        norm_BxL, apart_BxL = _collected(run, reach, state)
        among = {bounds: _within(apart_BxL, bounds) for bounds in STEPS}
        found[name] = [{"low": low, "high": high, "norm": float(norm_BxL[there_BxL].mean()),
                        "tokens": int(there_BxL.sum())}
                       for (low, high), there_BxL in among.items() if there_BxL.any()]
        told()
    return found


def reach(model: types.Model, params, batch: types.Batch, knobs: types.TracedHparams):
    """(norm_BxL, apart_BxL): of the gradient by each token's embedding, and how far before the state it stands; -1 of
    tokens that it cannot see."""
    text = batch.text
    B, L = text.ids_BxL.shape
    column_L, row_B = jnp.arange(L), jnp.arange(B)
    target_B = jnp.maximum((text.segments_BxL > 0).sum(-1) - 1 - batch.index_B % LAST, 1)
    place_B = target_B - 1

    def nats(shift_BxLxD):
        h_BxLxD, = model.encode(params["model"], text, shift_BxLxD=shift_BxLxD)
        log_prob_BxV = jax.nn.log_softmax(model.logits(params["model"], h_BxLxD[row_B, place_B]))
        return -log_prob_BxV[row_B, text.ids_BxL[row_B, target_B]].sum()

    norm_BxL = jnp.linalg.norm(jax.grad(nats)(jnp.zeros((B, L, model.width))), axis=-1)
    apart_BxL = place_B[:, None] - column_L
    seen_BxL = (text.segments_BxL == text.segments_BxL[row_B, target_B][:, None]) & (apart_BxL >= 0)
    return norm_BxL, jnp.where(seen_BxL, apart_BxL, -1)


def recall(run: Trained, told) -> dict:
    """The share of names, of those that stood in their row before, that the model finds likeliest among all names, and
    the same of the exact optimum: in all, and by how many sentence ends lie between."""
    cfg, packed, language = run.cfg, run.packed(), grammar.build(run.cfg.data.language)
    ids_NxL = np.asarray(packed.validation["ids"][:_rows(run)], np.int32)
    words_NxL = grammar.words(language, packed.tokenizer.pieces, ids_NxL)
    name_M = names(language)
    row_I, column_I, apart_I = again(language, words_NxL)
    entry_M = np.array([packed.tokenizer.pieces.index(language.words[name]) for name in name_M], np.int32)
    best_NxL, = _collected(run, likeliest, run.state, entry_M.tobytes())
    right_I = best_NxL[row_I, column_I - 1] == ids_NxL[row_I, column_I]
    told()
    known = causal_posterior.left_posterior(language.hmm, words_NxL, cfg.data.language.words)
    place_NxL = np.full(words_NxL.shape, -1)
    asked_K = known.column_K < words_NxL.shape[1]
    place_NxL[known.row_K[asked_K], known.column_K[asked_K]] = np.flatnonzero(asked_K)
    known_I = posterior.Posterior(*(of_K[place_NxL[row_I, column_I]] for of_K in known))
    log_prob_IxM = posterior.log_probs(causal_posterior.ended(language.hmm), known_I)[:, name_M]
    optimum_I = name_M[log_prob_IxM.argmax(1)] == words_NxL[row_I, column_I]

    def said(there_I):
        share, error = ratio(*(np.bincount(row_I[there_I], of_I[there_I]) for of_I in (right_I, np.ones(len(row_I)))))
        return {"items": int(there_I.sum()), "accuracy": share, "accuracy_se": error,
                "optimum": float(optimum_I[there_I].mean())}

    by_class = [(low, high, _within(apart_I, (low, high))) for low, high in SENTENCES]
    return {} if not len(row_I) else said(apart_I >= 0) | {"distance": [
        {"low": low, "high": high, **said(there_I)} for low, high, there_I in by_class if there_I.any()]}


def names(language: Grammar) -> np.ndarray:
    """name_M: the words that a protagonist makes likelier."""
    hmm = language.hmm
    return np.flatnonzero(np.isin(hmm.class_W, hmm.class_W[(hmm.by_name_MxW != 1).any(0)]))


def again(language: Grammar, words_NxL: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row_I, column_I, apart_I) of each name that stood in its row before, and how many sentence ends lie between it
    and the last time."""
    ends_NxL, found = (words_NxL == language.words.index(".")).cumsum(1), []
    for row, column in zip(*np.nonzero(np.isin(words_NxL, names(language))), strict=True):
        before = np.flatnonzero(words_NxL[row, :column] == words_NxL[row, column])
        if len(before):
            found.append((row, column, ends_NxL[row, column] - ends_NxL[row, before[-1]]))
    return tuple(np.array(found, int).reshape(-1, 3).T)


def likeliest(model: types.Model, entries: bytes, params, batch: types.Batch, knobs: types.TracedHparams):
    """(best_BxL,): which of some entries each state finds likeliest to come next."""
    entry_M = jnp.asarray(np.frombuffer(entries, np.int32))
    h_BxLxD, = model.encode(params["model"], batch.text)
    return entry_M[model.logits(params["model"], h_BxLxD)[..., entry_M].argmax(-1)],


def timed(run: Trained, told) -> dict:
    """Seconds that states and their gradients take, of as many tokens in rows of each length, by a quarter of
    config.pack.seq_len to four times as many: the shortest of three, on a machine that should have nothing else to do.
    """
    cfg, model = run.cfg, run.program.model
    params = run.program.run.get_state(run.state).params["model"]
    found = []
    for length in (cfg.pack.seq_len // 4, cfg.pack.seq_len // 2, cfg.pack.seq_len, 2 * cfg.pack.seq_len,
                   4 * cfg.pack.seq_len):
        if length > cfg.model.max_positions:
            continue
        shape = max(TOKENS // length, 1), length
        place_BxL = np.broadcast_to(np.arange(length, dtype=np.int32), shape)
        text = types.Tokens(place_BxL % run.about.vocab_size, np.ones(shape, np.int32), place_BxL, np.zeros(shape, int))
        step = jax.jit(jax.grad(lambda params, text: (model.encode(params, text)[0].astype(jnp.float32) ** 2).sum()))
        seconds = []
        for _ in range(4):  # the first compiles
            begun = time.perf_counter()
            jax.block_until_ready(step(params, text))
            seconds.append(time.perf_counter() - begun)
        found.append({"length": length, "rows": shape[0], "seconds": min(seconds[1:])})
        told()
    return {"lengths": found}


def _rows(run) -> int:
    return min(ROWS, loader.judged_rows(run.packed().validation, run.cfg.eval.max_examples))


def _collected(run, function, state, *fixed) -> list[np.ndarray]:
    """What a function of (model, *fixed, params, batch, knobs) gives the rows that are asked."""
    cfg, run_ = run.cfg, run.program.run
    answer, knobs = run_.per_row(function, run.program.model, *fixed), program.frozen(cfg)
    batches = loader.eval_batches(run.packed().validation, batch_size=cfg.eval.batch_size, max_rows=_rows(run),
                                  **parallel.process_slice())
    found = [answer(state, run_.put_batch(batch), knobs) for batch in batches]
    return [np.concatenate(part)[:_rows(run)] for part in zip(*found, strict=True)]


def _within(value: np.ndarray, bounds: tuple[int, int | None]) -> np.ndarray:
    low, high = bounds
    return (value >= low) & (high is None or value <= high)
