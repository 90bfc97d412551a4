"""A trained model, to use from Python: `mlm.load` returns one.

Letters in array names: S texts; K entries of the vocabulary that are likeliest; T tokens of one text.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import jax
import numpy as np

from mlm import models, objectives
from mlm.base import config, errors, types
from mlm.base.special import MASK
from mlm.data.tokenizers.hub_model import get_original_ids
from mlm.data.tokenizers.tokenizer import Tokenizer
from mlm.inference import batching, export, forward_passes, generation, prediction, surprisal
from mlm.inference.forward_passes import MaskedQueries, Pooling, l2_normalize
from mlm.models.hub import hub


@dataclasses.dataclass(frozen=True)
class MaskPrediction:
    """A token for a [MASK].

    Attributes:
        token: the entry of the vocabulary; with "▁", or without "##", before it where it begins a word.
        token_id: its id: `LanguageModel.vocab[token_id]` is the token.
        probability: its probability at this [MASK], from 0 to 1.
        text: the text with the token in the place of this [MASK]; other [MASK]s stay.
    """

    token: str
    token_id: int
    probability: float
    text: str


@dataclasses.dataclass(frozen=True)
class SimilarText:
    """A candidate of `LanguageModel.similar`.

    Attributes:
        index: its index among the candidates, from 0.
        text: the candidate.
        cosine: the cosine of its embedding and the text's, from -1 to 1.
    """

    index: int
    text: str
    cosine: float


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights of a text: row i holds the weight of each token j in the new state of token i.

    Attributes:
        tokens: the text's T entries of the vocabulary.
        weights_KxHxTxT: float32, for K layers of H heads; each row sums to 1.
    """

    tokens: list[str]
    weights_KxHxTxT: np.ndarray


@dataclasses.dataclass(eq=False, repr=False)
class LanguageModel:
    """A trained model with its tokenizer; `mlm.load` returns one.

        model = mlm.load("runs/a")
        model.fill_mask("the [MASK] milks the old cow .")[0][0].token

    Each method takes one text or a list of texts. One text returns one answer, a list returns a list of answers in the
    same order. A [MASK] in a text is the mask token. Texts longer than `length` tokens are truncated. An argument that
    is wrong, or a method that the model does not support, raises mlm.base.errors.ConfigError, whose message is one
    line.

    Token ids and the columns of `logits` are numbered as in the Hugging Face folder that the vocabulary came from, else
    as the run numbers them: `vocab` lists the entries by id. `tokenizer` and `params` number the special tokens first.

    The first call of a method compiles a program for each length of text, which takes seconds. Later calls use it, also
    those of a model that is loaded again in the same process. JAX keeps programs for later processes in the folder that
    the environment's JAX_COMPILATION_CACHE_DIR names.

    Attributes:
        config: the config of the run; of a Hugging Face folder, the config that describes its model.
        tokenizer: splits texts into entries of the vocabulary.
        model: the encoder and output layer, as pure functions of `params["model"]`.
        objective: what the model was trained for, as pure functions of `params["objective"]`.
        params: the parameters.
        dataset_info: what the objective knows of its data, such as the classes of a task.
        length: tokens of the longest text, [CLS] and [SEP] included.
        batch_size: texts of that length in a batch; a batch of shorter ones holds more.
        has_lm_head: whether the model has an output layer over the vocabulary.
        source: the Hugging Face folder that it was read from; None for a run.
        milestone: the step that it was loaded by; None: the newest checkpoint of a run.
    """

    config: config.Config
    tokenizer: Tokenizer
    model: types.Model
    objective: types.Objective
    params: types.Params
    dataset_info: types.DatasetInfo
    length: int
    batch_size: int = 32
    has_lm_head: bool = True
    source: hub.HubModel | None = None
    milestone: int | None = None

    def __repr__(self) -> str:
        fields = self.config.model
        kind = f"{fields.family} {fields.cell}".rstrip()
        parameters = sum(x.size for x in jax.tree.leaves(self.params))
        return (
            f"LanguageModel({self.config.workdir!r}, {kind}, {fields.num_layers} x {fields.width}, "
            f"{self.config.objective}, {parameters:,} parameters, vocabulary of {self.tokenizer.vocab_size:,})"
        )

    def fill_mask(self, text: str | Sequence[str], top_k: int = 5, batch_size: int | None = None) -> Any:
        """Predicts the token of each [MASK]. Where a text has several, the others stay masked.

        Args:
            text: a text with [MASK], or several.
            top_k: how many tokens for each [MASK].
            batch_size: sequences of full length in a batch; None: `batch_size` of the model.

        Returns:
            list: for a text an entry for each [MASK], the list of its `top_k` likeliest tokens (MaskPrediction), the
            likeliest first; for a list of texts a list of these.

        Raises:
            ConfigError: a text has no [MASK], or the model was not trained to predict masked tokens.
        """
        self._require_masked_predictions("fill_mask")
        texts, is_single = _listed(text)
        errors.require_integer("top_k", top_k, 1, self.tokenizer.vocab_size)
        for each in texts:
            errors.require(batching.MASK_TOKEN in each, "text", each, f"a text with {batching.MASK_TOKEN} in it")
        sequences = self._encode(texts)
        masks = [(i, place) for i, ids in enumerate(sequences) for place, token in enumerate(ids) if token == MASK]
        predict = forward_passes.compile_predictor(forward_passes.predict_top_tokens, self, top_k)

        def run_batch(indices, ids_BxL):
            place_B = np.zeros(len(ids_BxL), np.int32)
            place_B[: len(indices)] = [masks[index][1] for index in indices]
            return predict(self.params, MaskedQueries(ids_BxL, place_B, place_B + 1))

        outputs = forward_passes.run_batches(self, [sequences[i] for i, _ in masks], run_batch, batch_size)
        answers: list[list] = [[] for _ in texts]
        pieces, original_ids = self.tokenizer.pieces, self._original_ids.tolist()
        for (i, _), top in zip(masks, outputs, strict=True):
            likeliest = zip(*(values_K.tolist() for values_K in top), strict=True)
            filled = [(k, prob, self._fill(texts[i], len(answers[i]), k)) for prob, k in likeliest]
            answers[i].append([MaskPrediction(pieces[k], original_ids[k], prob, text) for k, prob, text in filled])
        return answers[0] if is_single else answers

    def encode(
        self,
        text: str | Sequence[str],
        layer: int = -1,
        pooling: Pooling = "",
        normalize: bool = False,
        batch_size: int | None = None,
    ) -> Any:
        """Computes embeddings of texts. [CLS] and [SEP] count as tokens.

        Args:
            layer: whose states to use: 1 is the first layer, -1 the last, 0 the embeddings below the first.
            pooling: "mean" of the tokens' states, the state of the "first" or the "last" token, or None for those of
                all tokens; "": that which the model's embeddings were trained by (objective contrastive), else "mean".
            normalize: scales each vector to length 1.
            batch_size: sequences of full length in a batch; None: `batch_size` of the model.

        Returns:
            float32: D numbers for a text, an array SxD for S texts, 0xD for none. With pooling=None an array TxD for
            each text of T tokens.

        Raises:
            ConfigError: no such layer or pooling, or the model reads a source beside the text.
        """
        texts, is_single = _listed(text)
        fields = self.config.model
        errors.require(not models.reads_source(self.config), "encode", fields.family, "a model that reads a text alone")
        errors.require_integer("layer", layer, -fields.num_layers - 1, fields.num_layers)
        errors.require(pooling in forward_passes.POOLINGS, "pooling", pooling, "mean, first, last or None")
        layer %= fields.num_layers + 1
        layer = layer if layer < fields.num_layers else -1
        kind = self.default_pooling if pooling == "" else pooling
        encode = forward_passes.compile_pass(forward_passes.encode_tokens, self.model, layer, kind)
        sequences = self._encode(texts)
        states = forward_passes.map_sequences(self, sequences, encode, batch_size)
        if pooling is None:
            states = [h_LxD[: len(ids)] for ids, h_LxD in zip(sequences, states, strict=True)]
        if normalize:
            states = [l2_normalize(state).astype(np.float32) for state in states]
        if is_single or pooling is None:
            return states[0] if is_single else states
        return np.stack(states) if states else np.zeros((0, len(self.model.directions) * self.model.width), np.float32)

    def similar(
        self,
        text: str | Sequence[str],
        candidates: Sequence[str],
        top_k: int = 5,
        layer: int = -1,
        pooling: Literal["", "mean", "first", "last"] = "",
    ) -> Any:
        """Finds the candidates whose embeddings have the largest cosine with that of the text.

        Args:
            layer: as in `encode`.
            pooling: as in `encode`, not None.

        Returns:
            For a text a list of SimilarText, the most similar first. For a list of texts a list of these.
        """
        texts, is_single = _listed(text)
        errors.require(pooling is not None, "pooling", pooling, "mean, first or last")
        errors.require_integer("top_k", top_k, 1)
        candidates, _ = _listed(candidates, "candidates")
        query_SxD, candidate_CxD = self.encode(texts, layer, pooling), self.encode(candidates, layer, pooling)
        cosine_SxC = l2_normalize(query_SxD) @ l2_normalize(candidate_CxD).T
        answers = [
            [SimilarText(int(i), candidates[int(i)], float(row[i])) for i in np.argsort(-row, kind="stable")[:top_k]]
            for row in cosine_SxC
        ]
        return answers[0] if is_single else answers

    def logits(self, text: str | Sequence[str], batch_size: int | None = None) -> Any:
        """Computes the output layer's logits at all tokens of each text.

        Args:
            batch_size: texts of full length in a batch; None: `batch_size` of the model.

        Returns:
            float32: for each text an array TxV, whose row i belongs to the token `tokenize(text)[i]`, column j to
            the entry `vocab[j]`.

        Raises:
            ConfigError: the model was not trained to predict masked tokens.
        """
        self._require_masked_predictions("logits")
        texts, is_single = _listed(text)
        compute = forward_passes.compile_predictor(forward_passes.compute_logits, self)
        sequences, order_V = self._encode(texts), np.argsort(self._original_ids)
        logits = forward_passes.map_sequences(self, sequences, compute, batch_size)
        answers = [logits_LxV[: len(ids), order_V] for ids, logits_LxV in zip(sequences, logits, strict=True)]
        return answers[0] if is_single else answers

    def pseudo_log_likelihood(
        self, text: str | Sequence[str], metric: Literal["pll", "pll_word_l2r"] = "pll", batch_size: int | None = None
    ) -> Any:
        """Computes the pseudo-log-likelihood of each text: the sum of the log-probabilities of its tokens, each masked.

        A [MASK] in a text stays masked and has no log-probability.

        Args:
            metric: "pll" masks each token alone (Salazar et al. 2020); "pll_word_l2r" also masks the tokens after it in
                its word (Kauf and Ivanova 2023).
            batch_size: sequences of full length in a batch; None: `batch_size` of the model.

        Returns:
            Nats: a number for a text, an array for a list.

        Raises:
            ConfigError: the model was not trained to predict masked tokens.
        """
        self._require_masked_predictions("pseudo_log_likelihood")
        texts, is_single = _listed(text)
        found = surprisal.compute_surprisal(self, texts, "text", metric, batch_size)
        nats_S = np.array([-parts[0].nats for parts in found])
        return nats_S[0] if is_single else nats_S

    def surprisal(
        self,
        text: str | Sequence[str],
        by: Literal["text", "word", "token"] = "word",
        metric: Literal["pll", "pll_word_l2r", "causal"] = "pll",
        batch_size: int | None = None,
        overlap: int | None = None,
    ) -> Any:
        """Computes how many nats each word of a text costs the model: -log p, given what the model reads.

        A causal model, and of two stacks the left one, reads what stands before: the sum over a text is exactly -log p
        of the text. A masked model reads all but the token: the sum is the negative pseudo-log-likelihood.

        Args:
            by: what has a surprisal: the words between white space, the tokens, or the whole text.
            metric: of a masked model, as in `pseudo_log_likelihood`; "causal": a hybrid model reads from left to right.
            batch_size: sequences of full length in a batch; None: `batch_size` of the model.
            overlap: of a text longer than `length`, how many tokens a window repeats of the one before, so that each
                token is conditioned on at least so many; None: half a window. A masked model reads each part alone.

        Returns:
            For a text a list of Surprisal, with the places of each in the text. For a list of texts a list of these.

        Raises:
            ConfigError: the model was not trained to predict the tokens of a text.
        """
        texts, is_single = _listed(text)
        answers = surprisal.compute_surprisal(self, texts, by, metric, batch_size, overlap)
        return answers[0] if is_single else answers

    def attentions(self, text: str | Sequence[str]) -> Any:
        """Computes the attention weights of each text, an Attention; ConfigError if the model has no attention."""
        fields = self.config.model
        errors.require(self.model.attention is not None, "attentions", fields.cell or fields.family, "a Transformer")
        texts, is_single = _listed(text)
        sequences = self._encode(texts)
        compute = forward_passes.compile_pass(forward_passes.compute_attention, self.model)
        answers = [
            Attention([self.tokenizer.pieces[token] for token in ids], weights[:, :, : len(ids), : len(ids)])
            for ids, weights in zip(sequences, forward_passes.map_sequences(self, sequences, compute), strict=True)
        ]
        return answers[0] if is_single else answers

    def predict(self, text: Any) -> Any:
        """Predicts a label with a model that was fine-tuned for classification, regression or tagging.

        Args:
            text: a text; a pair ("a", "b") for a model that was trained on pairs; for a tagger a text of words or a
                list of words. Or a list of any of these.

        Returns:
            A Prediction for each text; of a tagger a list with one for each word.

        Raises:
            ConfigError: the model was fine-tuned for neither classification, regression nor tagging.
        """
        return prediction.predict_labels(self, text)

    def generate(
        self,
        prompt: str | Sequence[str] = "",
        *,
        max_length: int = 0,
        num_return_sequences: int = 1,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        num_beams: int = 1,
        length_penalty: Literal["none", "mean", "wu"] = "mean",
        unmask_order: Literal["", "left", "confidence"] = "",
        tokens_per_step: int = 1,
        seed: int = 0,
    ) -> Any:
        """Generates texts. A causal or hybrid model continues a prompt, which may be empty.

        Any other model fills the [MASK]s of a prompt; a prompt without [MASK] is followed by as many as fit.

        Args:
            max_length: tokens in all, those of the prompt included; 0: as many as a training sequence.
            num_return_sequences: texts for each prompt.
            temperature: divides the logits before a token is sampled; 0: takes the likeliest token.
            top_k: samples from the k likeliest tokens; 0: from all.
            top_p: samples from the smallest set of tokens with this probability.
            num_beams: beams of beam search; 1: no beam search.
            length_penalty: what beam search divides a text's log-probability by: nothing ("none"), its length ("mean"),
                or ((5 + length) / 6)^0.6 ("wu").
            unmask_order: which [MASK] is filled next: the "left"most, or the one of most "confidence", the default.
            tokens_per_step: [MASK]s that one forward pass fills.
            seed: of the sampling; the same seed gives the same texts, whatever the other prompts are.

        Returns:
            A list of GeneratedText for each prompt.

        Raises:
            ConfigError: the model does not support a setting.
        """
        prompts, is_single = _listed(prompt)
        search = num_beams, length_penalty, unmask_order, tokens_per_step, seed
        settings = generation.GenerationSettings(max_length, num_return_sequences, temperature, top_k, top_p, *search)
        answers = generation.generate_texts(self, prompts, settings)
        return answers[0] if is_single else answers

    def translate(
        self,
        source: str | Sequence[str],
        *,
        num_beams: int = 4,
        length_penalty: Literal["none", "mean", "wu"] = "mean",
        num_return_sequences: int = 1,
    ) -> Any:
        """Translates with beam search.

        Args:
            length_penalty: as in `generate`.
            num_return_sequences: translations for each source, at most `num_beams`.

        Returns:
            A list of GeneratedText for each source, the best first.

        Raises:
            ConfigError: the model was not trained on parallel text.
        """
        sources, is_single = _listed(source)
        answers = generation.translate_texts(
            self, sources, num_beams=num_beams, length_penalty=length_penalty, num_return_sequences=num_return_sequences
        )
        return answers[0] if is_single else answers

    def save_pretrained(self, folder: str, sentence_transformers: bool = False) -> dict:
        """Writes a Hugging Face folder, which `mlm.load` reads, and transformers where it has such a model.

        Args:
            folder: a new or empty folder.
            sentence_transformers: also writes what SentenceTransformer(folder) reads, whose `encode` is this one.

        Returns:
            dict: {"written": the folder, "model_type": the model's name in transformers, or "mlm" if it has none there,
            "note": why it has none}.
        """
        return export.save_pretrained(self, str(folder), sentence_transformers=sentence_transformers)

    @property
    def default_pooling(self) -> str:
        """The pooling that the model's embeddings were trained by, else "mean"."""
        return objectives.get_embedding_pooling(self.config) or types.Pooling.MEAN

    @functools.cached_property
    def vocab(self) -> list[str]:
        """The entries of the vocabulary by id, as in `MaskPrediction.token`: column j of `logits` is `vocab[j]`."""
        return [self.tokenizer.pieces[entry] for entry in np.argsort(self._original_ids)]

    def tokenize(self, text: str | Sequence[str]) -> Any:
        """The ids of each text as the model reads it, a list: [CLS] first, [SEP] last, at most `length`."""
        texts, is_single = _listed(text)
        answers = [self._original_ids[ids].tolist() for ids in self._encode(texts)]
        return answers[0] if is_single else answers

    @functools.cached_property
    def _original_ids(self) -> np.ndarray:
        return get_original_ids(self.tokenizer)

    def get_masking_requirement(self) -> str:
        """What a model that predicts no masked tokens would have to be; "": it predicts them."""
        if objectives.get_visibility(self.config) != types.Visibility.UNMASKED:
            return "a run that was trained to predict masked tokens (such as mlm)"
        expected = "a folder whose tensors have an output layer; this one is an encoder alone, which `encode` uses"
        return "" if self.has_lm_head else expected

    def _require_masked_predictions(self, method: str) -> None:
        is_masked = objectives.get_visibility(self.config) == types.Visibility.UNMASKED
        subject = self.config.workdir if is_masked else self.config.objective
        requirement = self.get_masking_requirement()
        errors.require(not requirement, method, subject, requirement)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return batching.encode_truncated(self.tokenizer, texts, self.length)

    def _fill(self, text: str, number: int, token_id: int) -> str:
        """The text with a token in the place of its [MASK] of that number."""
        *parts, after = text.split(batching.MASK_TOKEN, number + 1)
        before = batching.MASK_TOKEN.join(parts)
        starts_word = self.tokenizer.starts_word_V[token_id] or self.tokenizer.ends_word_V is not None
        piece = batching.format_piece(self.tokenizer.pieces[token_id])
        word = before.split()[-1] if starts_word and before[-1:].strip() else ""  # as a part of it the token is another
        space = " " * (word != "" and self.tokenizer.encode(word + piece)[-1:] != [token_id])
        return (before + space if starts_word else before.rstrip()) + piece + after


def _listed(text: str | Sequence[str], name: str = "text") -> tuple[list[str], bool]:
    """The texts as a list, and whether there was a single one."""
    errors.require(isinstance(text, Iterable), name, text, "a text, or several")
    texts = [text] if isinstance(text, str) else list(text)
    for each in texts:
        errors.require(isinstance(each, str), name, each, "a text")
    return texts, isinstance(text, str)
