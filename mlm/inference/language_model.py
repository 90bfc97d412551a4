"""A trained model as something to use from Python: `mlm.open` gives one.

Letters in array names: S texts; K entries of the vocabulary that are likeliest; T tokens of one text.
"""
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, errors, types
from mlm.base.special import MASK
from mlm.data.tasks import tasks
from mlm.data.tokenizers import words
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.evaluation import embeddings
from mlm.inference import batching, generation, masked_queries, prediction, pseudo_likelihood
from mlm.inference.masked_queries import Cloze
from mlm.inference.prediction import Prediction
from mlm.models.hub import hub
from mlm.train.run import trained_run

POOLS = ("mean", "first", None)


class Filling(NamedTuple):
    """What may stand in the place of a [MASK]."""

    token: str                # an entry of the vocabulary; "▁" or no "##" before it: a word begins
    probability: float
    text: str                 # the text with it there, other [MASK] left as they are


class LanguageModel(NamedTuple):
    """A model, its vocabulary and its parameters. Methods take one text or a list of them, and give as many answers.

    Texts are asked in batches of like length, so that few programs are compiled; answers are numpy's, in the order of
    the texts. A text longer than `length` tokens is cut.
    """

    cfg: config.Config
    tokenizer: Tokenizer
    model: types.Model
    objective: types.Objective
    params: types.Params      # "model" and "objective", as a run keeps them
    about: types.DatasetInfo
    length: int               # longest row, in tokens
    batch: int = 32           # rows of that length in a batch
    output: bool = True       # whether it came with an output layer over the vocabulary
    texts: tuple[int, ...] = (1, 2)  # how many an example of a fine-tuned model has
    source: hub.Read | None = None  # of a Hugging Face folder: what else it held

    def fill(self, text: str | Sequence[str], top: int = 5) -> list:
        """For each [MASK] of a text its `top` likeliest fillings, each [MASK] asked with the others hidden.

        Of a list of texts a list of such. Raises ConfigError for a text without [MASK], and for a model that was
        trained to fill nothing in.
        """
        self._expect_masked("fill")
        texts, one = _listed(text)
        errors.require_number("top", top, 1, self.tokenizer.vocab_size)
        for each in texts:
            errors.require(batching.HIDDEN in each, "text", each, f"a text with {batching.HIDDEN} in it")
        ids = self._rows(texts)
        asked = [(number, place) for number, row in enumerate(ids) for place, token in enumerate(row) if token == MASK]
        answer = self.telling(likeliest, top)
        found: list[list] = [[] for _ in texts]
        given: dict[tuple[int, int], list] = {}
        for mine, ids_BxL in self.batches([ids[number] for number, _ in asked]):
            place_B = np.zeros(len(ids_BxL), np.int32)
            place_B[:len(mine)] = [asked[i][1] for i in mine]
            share_BxK, id_BxK = answer(self.params, Cloze(ids_BxL, place_B, place_B + 1))
            for row, i in enumerate(mine):
                given[asked[i]] = list(zip(id_BxK[row].tolist(), share_BxK[row].tolist(), strict=True))
        for number, place in asked:
            put = len(found[number])
            found[number].append([Filling(self.tokenizer.pieces[entry], share, self._put(texts[number], put, entry))
                                  for entry, share in given[number, place]])
        return found[0] if one else found

    def embed(self, text: str | Sequence[str], layer: int = -1, pool: str | None = "mean") -> np.ndarray | list:
        """Embeddings, float32: of a text D numbers, of a list SxD. [CLS] and [SEP] are tokens like any other.

        layer: 0 the embeddings, -1 the last. pool: the mean over tokens, the first token's state, or None: all states,
        TxD of each text. Raises ConfigError for a layer or a pool that there is not.
        """
        texts, one = _listed(text)
        errors.require(not embeddings.can(self.cfg), "embed", self.cfg.model.family, "a model that reads a text alone")
        errors.require_number("layer", layer, -self.cfg.model.num_layers - 1, self.cfg.model.num_layers)
        errors.require(pool in POOLS, "pool", pool, "mean, first or None")
        found = self._states(texts, layer % (self.cfg.model.num_layers + 1), pool)
        return found[0] if one else found if pool is None else np.stack(found) if found else np.zeros(
            (0, len(self.model.directions) * self.model.width), np.float32)

    def similar(self, text: str | Sequence[str], others: Sequence[str], top: int = 5, layer: int = -1,
                pool: str = "mean") -> list:
        """The numbers of the `top` texts among `others` whose embeddings are most like a text's, each with its cosine.
        """
        texts, one = _listed(text)
        errors.require(pool is not None, "pool", pool, "mean or first")
        cosine_SxO = (embeddings.unit(self.embed(texts, layer, pool)) @ embeddings.unit(self.embed(others, layer,
                                                                                                   pool)).T)
        found = [[(int(number), float(row[number])) for number in np.argsort(-row, kind="stable")[:top]]
                 for row in cosine_SxO]
        return found[0] if one else found

    def logits(self, text: str | Sequence[str]) -> np.ndarray | list[np.ndarray]:
        """TxV, float32, of each text: the output layer over all its tokens, a [MASK] in it hidden."""
        self._expect_masked("logits")
        texts, one = _listed(text)
        found = self._each(self._rows(texts), self.telling(every_logit))
        return found[0] if one else found

    def score(self, text: str | Sequence[str], metric: str = "pll") -> np.ndarray:
        """The pseudo-log-likelihood of each text, in nats: each token hidden alone (pll, Salazar et al. 2020), or with
        the rest of its word (pll_word_l2r, Kauf and Ivanova 2023)."""
        self._expect_masked("score")
        errors.require_one_of("metric", metric, pseudo_likelihood.METRICS)
        texts, one = _listed(text)
        answer = self.telling(masked_queries.log_prob)
        given = pseudo_likelihood.scores(lambda asked: answer(self.params, asked),
                                         pseudo_likelihood.clozes(self.tokenizer, texts, self.length), self.batch)
        found = getattr(given, f"{metric}_S")
        return found[0] if one else found

    def attention(self, text: str | Sequence[str]) -> list:
        """(tokens, weights_KxHxTxT), float32: how much, in each of K layers and H heads, each token of a text takes of
        each other one; tokens are entries of the vocabulary. Raises ConfigError for a model without attention.
        """
        errors.require(self.model.attention is not None, "attention", self.cfg.model.cell or self.cfg.model.family,
                      "a Transformer")
        texts, one = _listed(text)
        ids, found = self._rows(texts), [None] * len(texts)
        answer = self.compiled(attended)
        for mine, ids_BxL in self.batches(ids):
            weights_BxKxHxLxL = np.asarray(answer(self.params, ids_BxL))
            for row, number in enumerate(mine):
                size = len(ids[number])
                tokens = [self.tokenizer.pieces[token] for token in ids[number]]
                found[number] = tokens, weights_BxKxHxLxL[row, :, :, :size, :size]
        return found[0] if one else found

    def predict(self, text) -> Prediction | list:
        """What a fine-tuned model says: of a text, or a pair ("a", "b") where it was trained on pairs, a `Prediction`;
        of words, a text's or a list's, one for each that fits into a row. Of a list of such a list.

        Raises ConfigError for a model that was fine-tuned for neither a class, a number nor tags.
        """
        return prediction.predict(self, text)

    def generate(self, prompt: str | Sequence[str] = "", **how) -> list:
        """Texts behind a prompt, or in the places of its [MASK]s; how: beams, temperature, top_k, top_p, length, count,
        seed, by and more, as written.write has them. Of a list of prompts a list of such."""
        texts, one = _listed(prompt)
        found = generation.write(self, texts, **how)
        return found[0] if one else found

    def translate(self, source: str | Sequence[str], **how) -> list:
        """The best texts beside a source; how: beams, normalise, count, as written.translate has them. Of a list of
        sources a list of such."""
        texts, one = _listed(source)
        found = generation.translate(self, texts, **how)
        return found[0] if one else found

    def _expect_masked(self, what):
        errors.require(objectives.seen(self.cfg) == "rest", what, self.cfg.objective,
                      "a run that was trained to tell what is hidden (such as mlm)")
        errors.require(self.output, what, self.cfg.workdir, "a folder whose tensors have an output layer; it is an "
                      "encoder alone, to embed with")

    def compiled(self, function, *fixed) -> Callable:
        """A function of (model, *fixed, ...) with those in place, compiled once for all models like this one."""
        return _compiled(function, self.model, *fixed)

    def telling(self, function, *fixed) -> Callable:
        """As `compiled`, of the model as hidden tokens are read from it."""
        return _compiled(function, objectives.telling(self.cfg, self.model), *fixed)

    def _rows(self, texts) -> list[list[int]]:
        """Rows in which a [MASK] hides what stands there."""
        return batching.rows(self.tokenizer, texts, self.length, hidden=True)

    def batches(self, ids):
        """`batches.batched` of some rows of ids."""
        return batching.batched(ids, self.length, self.batch)

    def _states(self, texts, layer, pool):
        ids = batching.rows(self.tokenizer, texts, self.length)
        return self._each(ids, self.compiled(states, layer if layer < self.cfg.model.num_layers else -1, pool))

    def _each(self, ids, answer) -> list:
        """What a function of (params, ids_BxL) gives each row, of its own tokens where it gives more."""
        found: list = [None] * len(ids)
        for mine, ids_BxL in self.batches(ids):
            value_Bx = np.asarray(answer(self.params, ids_BxL))
            for row, number in enumerate(mine):
                found[number] = value_Bx[row] if value_Bx.ndim == 2 else value_Bx[row, :len(ids[number])]
        return found

    def _put(self, text, number, entry) -> str:
        """A text with an entry of the vocabulary in the place of one [MASK]."""
        *before, after = text.split(batching.HIDDEN, number + 1)
        first = batching.HIDDEN.join(before)
        starts = self.tokenizer.starts_word_V[entry]
        return (first if starts else first.rstrip()) + batching.surface(self.tokenizer.pieces[entry]) + after


def load(folder: str) -> LanguageModel:
    """The model of the newest checkpoint in a run's directory, also while it trains.

    Raises ConfigError where there is no run or no checkpoint yet.
    """
    run = trained_run.load(folder, {}, alone=False)
    params = run.program.run.get_state(run.state).params
    tokenizer = words.showing_mask(run.tokenizer) if run.cfg.data.task in tasks.DRAWN else run.tokenizer
    return LanguageModel(
        run.cfg,
        tokenizer,
        run.program.model,
        run.program.objective,
        jax.tree.map(jnp.asarray, params),
        run.about,
        run.cfg.pack.seq_len,
        batching.fast(run.cfg.pack.seq_len),
        texts=(2,) if tasks.pairs(run.cfg.data) else (1,),
    )


def _listed(text) -> tuple[list[str], bool]:
    """Texts as a list, and whether one stood alone."""
    one = isinstance(text, str)
    texts = [text] if one else list(text)
    for each in texts:
        errors.require(isinstance(each, str), "text", each, "a text")
    return texts, one


@functools.cache
def _compiled(function, *fixed) -> Callable:
    return jax.jit(functools.partial(function, *fixed))


def likeliest(model: types.Model, top: int, params, asked: Cloze):
    """(share_BxK, id_BxK): the `top` likeliest entries at the hidden place, with their probabilities."""
    log_prob_BxK, id_BxK = jax.lax.top_k(masked_queries.log_probs(model, params, asked), top)
    return jnp.exp(log_prob_BxK), id_BxK


def states(model: types.Model, layer: int, pool: str | None, params, ids_BxL):
    """h_BxD of rows, or h_BxLxD where pool is None; layer -1: the last."""
    text = masked_queries.text(ids_BxL)
    if layer < 0:
        h_BxLxD = jnp.concatenate(model.encode(params["model"], text), -1)
    else:
        h_BxLxD = model.encode_layers(params["model"], text)[layer]
    h_BxLxD = h_BxLxD.astype(jnp.float32)
    if pool == "first":
        return h_BxLxD[:, 0]
    if pool == "mean":
        there_BxLx1 = (text.segments_BxL > 0)[..., None]
        return (h_BxLxD * there_BxLx1).sum(1) / there_BxLx1.sum(1)
    return h_BxLxD


def every_logit(model: types.Model, params, ids_BxL):
    """logits_BxLxV of rows."""
    return model.logits(params["model"], model.encode(params["model"], masked_queries.text(ids_BxL))[0])


def attended(model: types.Model, params, ids_BxL):
    """weights_BxKxHxLxL, float32."""
    return model.attention(params["model"], masked_queries.text(ids_BxL)).swapaxes(0, 1).astype(jnp.float32)
