"""A model of mlm in EleutherAI's lm-evaluation-harness; the extra lm-eval installs it.

python -m mlm.inference.harness --model=mlm --model_args=path=runs/a --tasks=TASK --include_path=FOLDER

is the harness's own command, `lm_eval`, with this model: it knows models that were imported alone.
"""

import dataclasses
import functools
import math
import sys

import jax
import jax.numpy as jnp

from mlm.base import errors, extras
from mlm.inference import pretrained_io

IMPOSSIBLE = 1e9  # nats
ARGUMENTS = ("path", "step", "batch_size", "max_batch_size", "device", "trust_remote_code")

api = extras.import_extra("lm_eval.api.model", "lm-eval", "mlm.inference.harness")
registry = extras.import_extra("lm_eval.api.registry", "lm-eval", "mlm.inference.harness")


@registry.register_model("mlm")
class HarnessModel(api.LM):
    """Log-likelihoods as `mlm score` has them: exact of a causal model, pseudo-log-likelihoods of a masked one.

    A context and its continuation are tokenized as one text. A token of which any part is the continuation's counts for
    it, whole; white space at the end of a context is the continuation's. A text longer than a training sequence is read
    in parts: alone where the model is masked, else in windows of which each repeats half of the one before.
    """

    def __init__(self, path: str = "", step: int | None = None, batch_size: int | str = "auto", **kwargs):
        """Loads a model as `mlm.load` does.

        Args:
            batch_size: sequences of full length in a batch; "auto": `batch_size` of the model.
            kwargs: what the harness tells every model, such as a device; none changes anything.

        Raises:
            ConfigError: there is no such model, or no such argument.
        """
        super().__init__()
        for name in kwargs:
            errors.require_one_of("--model_args", name, ARGUMENTS)
        self.model = pretrained_io.load_model(str(path), step)  # of path=5 the harness makes a number
        self.batch_size = int(batch_size) if str(batch_size).isdecimal() else None
        logits = functools.partial(_choose_likeliest, self.model.model.logits)
        self.likeliest = dataclasses.replace(self.model, model=dataclasses.replace(self.model.model, logits=logits))

    def loglikelihood(self, requests, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-likelihood of each continuation, whether each token of it is the likeliest).

        A token that the vocabulary lacks has no log-likelihood, and is never the likeliest.
        """
        nats, misses = (self._score_continuations(model, requests) for model in (self.model, self.likeliest))
        return [
            (-sum(value for value in values if not math.isnan(value)), all(miss < IMPOSSIBLE / 2 for miss in missed))
            for values, missed in zip(nats, misses, strict=True)
        ]

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text."""
        found = self.model.surprisal([request.args[0] for request in requests], "text", batch_size=self.batch_size)
        return [-parts[0].nats for parts in found]

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        """Raises ConfigError: mlm's models score texts here."""
        raise errors.ConfigError("lm-eval, output_type = 'generate_until': expected one that scores texts")

    def _score_continuations(self, model, requests) -> list[list[float]]:
        """The nats of each token of each continuation; NaN for what the vocabulary lacks."""
        texts = ["".join(request.args) for request in requests]
        found = model.surprisal(texts, "token", batch_size=self.batch_size)
        starts = [len(request.args[0].rstrip()) for request in requests]
        return [
            # A token that is a space starts and ends where the word before it ends.
            [token.nats for token in tokens if token.end > start or token.start == start]
            for tokens, start in zip(found, starts, strict=True)
        ]


def _choose_likeliest(logits, params, h) -> jax.Array:
    """Logits of which the likeliest entry has all probability: any other is impossible."""
    logits_BxV = logits(params, h)
    return jnp.where(logits_BxV == logits_BxV.max(-1, keepdims=True), 0.0, -IMPOSSIBLE)


def main() -> None:
    """Runs the harness's command; an error of bad input is one line, with exit code 2."""
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    try:
        cli_evaluate()
    except errors.ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
