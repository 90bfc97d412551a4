"""A model of mlm in EleutherAI's lm-evaluation-harness; the extra lm-eval installs it.

python -m mlm.inference.harness run --model=mlm --model_args=path=runs/a --tasks=TASK --include_path=FOLDER
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from mlm.base import errors, extras
from mlm.inference import pretrained_io

IMPOSSIBLE = 1e9  # nats

api = extras.import_extra("lm_eval.api.model", "lm-eval", "mlm.inference.harness")
registry = extras.import_extra("lm_eval.api.registry", "lm-eval", "mlm.inference.harness")


@registry.register_model("mlm")
class HarnessModel(api.LM):
    """Log-likelihoods as `mlm score` has them: exact of a causal model, pseudo-log-likelihoods of a masked one.

    A text longer than a training sequence is read in parts: alone where the model is masked, else in windows of which
    each repeats half of the one before.
    """

    def __init__(self, path: str, step: int | None = None, batch_size: int | str = "", **kwargs):
        """Loads a model as `mlm.load` does; kwargs: what the harness tells every model, such as a device."""
        super().__init__()
        self.model = pretrained_io.load_model(path, step)
        self.batch_size = int(batch_size) if str(batch_size).isdecimal() else None  # or auto
        logits = functools.partial(_choose_likeliest, self.model.model.logits)
        self.likeliest = dataclasses.replace(self.model, model=dataclasses.replace(self.model.model, logits=logits))

    def loglikelihood(self, requests, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-likelihood of each continuation, whether each token of it is the likeliest)."""
        nats, misses = (self._score_continuations(model, requests) for model in (self.model, self.likeliest))
        return [(-one, missed < IMPOSSIBLE / 2) for one, missed in zip(nats, misses, strict=True)]

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text."""
        found = self.model.surprisal([request.args[0] for request in requests], "text", batch_size=self.batch_size)
        return [-parts[0].nats for parts in found]

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        """Raises ConfigError: mlm's models score texts here."""
        raise errors.ConfigError("lm-eval, output_type = 'generate_until': expected loglikelihood or multiple_choice")

    def _score_continuations(self, model, requests) -> list[float]:
        """The nats of the tokens of each continuation, without those that the vocabulary lacks."""
        texts = ["".join(request.args) for request in requests]
        found = model.surprisal(texts, "token", batch_size=self.batch_size)
        starts = [len(request.args[0]) for request in requests]
        return [
            sum(token.nats for token in tokens if token.end > start and not math.isnan(token.nats))
            for tokens, start in zip(found, starts, strict=True)
        ]


def _choose_likeliest(logits, params, h) -> jax.Array:
    """Logits of which the likeliest entry has all probability: any other is impossible."""
    logits_BxV = logits(params, h)
    return jnp.where(logits_BxV == logits_BxV.max(-1, keepdims=True), 0.0, -IMPOSSIBLE)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    cli_evaluate()
