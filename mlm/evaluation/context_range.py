"""How far back a causal model looks: gradients and name recall by distance, and time by sequence length.

Letters in array names: I repeated names, M names of the language, W its words, K predictions of the posterior; others
as in types.py.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from mlm import models, objectives
from mlm.base import config, types
from mlm.base.estimates import compute_ratio
from mlm.data.language import causal_posterior, grammar, posterior
from mlm.data.language.grammar import Grammar
from mlm.data.rows import loader
from mlm.evaluation import grammar_probes
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import program

MAX_EXAMPLES = 256  # held-out examples that gradients and recall are measured on
LAST_TOKENS = 16  # an example's gradient is that of one of its last tokens, of so many
TIMED_TOKENS = 2**12  # tokens of a timed step
TOKEN_DISTANCES = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, None))
SENTENCE_DISTANCES = ((0, 0), (1, 1), (2, 3), (4, 7), (8, None))  # by sentence ends in between


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    if models.reads_source(cfg):
        return f"config.model.family is {cfg.model.family}, which reads a source"
    if cfg.model.directionality != "causal":
        return f"config.model.directionality is {cfg.model.directionality}, not causal"
    if objectives.get_visibility(cfg) == types.Visibility.CAUSAL:
        return ""
    return f"config.objective is {cfg.objective}, which does not predict next tokens"


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """The cases of config.eval.context_range: "gradient" and "time", and "recall" for the built-in language."""
    if not cfg.eval.context_range:
        return []
    inputs = {"examples": MAX_EXAMPLES, "max_examples": cfg.eval.max_examples}
    names = ["gradient", "time"] + ["recall"] * (cfg.data.corpus == "language")
    return [EvaluationCase("context_range", name, inputs) for name in names]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """Measures one of the three curves of a case: gradient, recall or time."""
    return {"gradient": measure_gradients, "recall": measure_recall, "time": measure_time}[case.name](run)


def select_examples(run: TrainedRun) -> tuple[loader.Columns, int]:
    """The validation split, and how many of its examples are measured."""
    split = run.load_data().validation
    return split, min(MAX_EXAMPLES, loader.count_eval_examples(split, run.cfg.eval.max_examples))


def measure_gradients(run: TrainedRun) -> dict:
    """The mean norm of the gradient of a token's -log P with respect to an earlier embedding, by distance.

    The distance counts from the state that predicts the token, which is one of the last LAST_TOKENS tokens of each
    example and the same for every model. "start" is of the initial parameters, "trained" of the run's.
    """
    split, count = select_examples(run)
    initial_state = run.program.partitioner.put_state(run.program.init_state(program.make_train_hparams(run.cfg)))
    result = {}
    for name, state in (("start", initial_state), ("trained", run.state)):
        norm_BxL, distance_BxL = run.map_examples(compute_gradient_norms, split=split, max_examples=count, state=state)
        summarize = lambda selected_BxL, norm_BxL=norm_BxL: {
            "norm": float(norm_BxL[selected_BxL].mean()),
            "tokens": int(selected_BxL.sum()),
        }
        result[name] = grammar_probes.summarize_bins(distance_BxL, TOKEN_DISTANCES, summarize)
    return result


def compute_gradient_norms(model: types.Model, params, batch: types.Batch, hparams: types.TracedHparams):
    """(norm_BxL, distance_BxL) of each token's embedding; the distance of tokens that the state cannot see is -1."""
    tokens = batch.text
    B, L = tokens.ids_BxL.shape
    position_L, index_B = jnp.arange(L), jnp.arange(B)
    target_B = jnp.maximum((tokens.segments_BxL > 0).sum(-1) - 1 - batch.index_B % LAST_TOKENS, 1)
    state_B = target_B - 1

    def compute_nats(shift_BxLxD):
        (h_BxLxD,) = model.encode(params["model"], tokens, shift_BxLxD=shift_BxLxD)
        log_prob_BxV = jax.nn.log_softmax(model.logits(params["model"], h_BxLxD[index_B, state_B]))
        return -log_prob_BxV[index_B, tokens.ids_BxL[index_B, target_B]].sum()

    norm_BxL = jnp.linalg.norm(jax.grad(compute_nats)(jnp.zeros((B, L, model.width))), axis=-1)
    distance_BxL = state_B[:, None] - position_L
    target_segment_Bx1 = tokens.segments_BxL[index_B, target_B][:, None]
    visible_BxL = (tokens.segments_BxL == target_segment_Bx1) & (distance_BxL >= 0)
    return norm_BxL, jnp.where(visible_BxL, distance_BxL, -1)


def measure_recall(run: TrainedRun) -> dict:
    """Accuracy on names that were mentioned before in their example, where the model chooses among all names.

    Beside it the Bayes-optimal accuracy ("optimum"); both overall and by the sentence ends since the last mention.
    """
    cfg, pieces, language = run.cfg, run.tokenizer.pieces, grammar.build_grammar(run.cfg.data.language)
    split, count = select_examples(run)
    ids_NxL = np.asarray(split["ids"][:count], np.int32)
    words_NxL = grammar.convert_ids_to_words(language, pieces, ids_NxL)
    name_M = find_names(language)
    example_I, column_I, distance_I = find_repeated_names(language, words_NxL)
    entry_M = np.array([pieces.index(language.words[name]) for name in name_M], np.int32)
    predicted_NxL = run.map_examples(predict_candidates, entry_M.tobytes(), split=split, max_examples=count)
    correct_I = predicted_NxL[example_I, column_I - 1] == ids_NxL[example_I, column_I]
    exact = causal_posterior.compute_causal_posterior(language.hmm, words_NxL, cfg.data.language.max_words)
    index_NxL = np.full(words_NxL.shape, -1)
    inside_K = exact.position_K < words_NxL.shape[1]
    index_NxL[exact.example_K[inside_K], exact.position_K[inside_K]] = np.flatnonzero(inside_K)
    exact_I = posterior.Posterior(*(value_K[index_NxL[example_I, column_I]] for value_K in exact))
    log_prob_IxM = posterior.compute_log_probs(causal_posterior.add_end_state(language.hmm), exact_I)[:, name_M]
    optimal_correct_I = name_M[log_prob_IxM.argmax(1)] == words_NxL[example_I, column_I]

    def summarize(selected_I):
        example_J, correct_J = example_I[selected_I], correct_I[selected_I]
        accuracy, error = compute_ratio(np.bincount(example_J, correct_J), np.bincount(example_J))
        optimum = float(optimal_correct_I[selected_I].mean())
        return {"items": len(example_J), "accuracy": accuracy, "accuracy_se": error, "optimum": optimum}

    if not len(example_I):
        return {}
    by_bin = grammar_probes.summarize_bins(distance_I, SENTENCE_DISTANCES, summarize)
    return summarize(distance_I >= 0) | {"distance": by_bin}


def find_names(language: Grammar) -> np.ndarray:
    """name_M: the words that a protagonist makes likelier."""
    return np.flatnonzero(language.kind_W == "name")


def find_repeated_names(language: Grammar, words_NxL: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(example_I, column_I, distance_I) of each name that its example mentioned before.

    distance_I counts the sentence ends since the last mention.
    """
    ends_NxL, items = (words_NxL == language.words.index(".")).cumsum(1), []
    for example, column in zip(*np.nonzero(np.isin(words_NxL, find_names(language))), strict=True):
        mentions = np.flatnonzero(words_NxL[example, :column] == words_NxL[example, column])
        if len(mentions):
            items.append((example, column, ends_NxL[example, column] - ends_NxL[example, mentions[-1]]))
    example_I, column_I, distance_I = np.array(items, int).reshape(-1, 3).T
    return example_I, column_I, distance_I


def predict_candidates(model: types.Model, candidates: bytes, params, batch: types.Batch, hparams: types.TracedHparams):
    """predicted_BxL: the likeliest next token of each state, among some entries of the vocabulary.

    candidates: int32 ids, as bytes, so that they can be hashed.
    """
    entry_M = jnp.asarray(np.frombuffer(candidates, np.int32))
    (h_BxLxD,) = model.encode(params["model"], batch.text)
    return entry_M[model.logits(params["model"], h_BxLxD)[..., entry_M].argmax(-1)]


def measure_time(run: TrainedRun) -> dict:
    """Seconds that the states and their gradients take, by sequence length, for the same number of tokens.

    Lengths run from a quarter of config.pack.seq_len to four times as much; each time is the shortest of three. The
    machine should have nothing else to do.
    """
    cfg, model = run.cfg, run.program.model
    params = run.program.partitioner.get_state(run.state).params["model"]
    lengths = []
    for length in (cfg.pack.seq_len * quarters // 4 for quarters in (1, 2, 4, 8, 16)):
        if length > cfg.model.max_positions:
            continue
        shape = max(TIMED_TOKENS // length, 1), length
        position_BxL = np.broadcast_to(np.arange(length, dtype=np.int32), shape)
        tokens = types.Tokens(
            position_BxL % run.dataset_info.vocab_size, np.ones(shape, np.int32), position_BxL, np.zeros(shape, int)
        )
        sum_squares = lambda params, tokens: (model.encode(params, tokens)[0].astype(jnp.float32) ** 2).sum()
        step = jax.jit(jax.grad(sum_squares))
        seconds = []
        for _ in range(4):  # the first compiles
            start_time = time.perf_counter()
            jax.block_until_ready(step(params, tokens))
            seconds.append(time.perf_counter() - start_time)
        lengths.append({"length": length, "examples": shape[0], "seconds": min(seconds[1:])})
    return {"lengths": lengths}
