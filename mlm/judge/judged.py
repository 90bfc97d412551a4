"""Judging a trained run on sentences and minimal pairs: what it reached is kept in judged.json beside its result."""
import functools
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm.base import fields, files
from mlm.data.tasks import blimp
from mlm.judge import cloze, pairs, pll
from mlm.train.run.progress import Progress
from mlm.train.run.trained import Trained

EVERY = 5.0  # seconds between lines of progress


class Part(NamedTuple):
    """What is judged and kept as one: some sentences, or a paradigm of minimal pairs."""

    name: str
    into: dict          # where the values are kept, under that name
    texts: Sequence[str]
    measure: Callable[[pll.Scores], dict]
    about: dict         # to keep beside what was measured


def judge(trained: Trained, sentences: Sequence[str], paradigms: Sequence[blimp.Paradigm]) -> dict:
    """The contents of judged.json once these sentences (none: those it holds) and paradigms are in it.

    "fingerprint" and "step" say what was judged; "sentences" is `pll.pseudo_perplexity`; "paradigms" has
    `pairs.accuracy` by name, and "phenomena" and "overall" are the `pairs.summary` of all that stand there. What it
    holds already of the same texts and step is not done again, and each part is written as soon as it is done.
    """
    path = Path(trained.cfg.workdir, "judged.json")
    judged = {"fingerprint": fields.fingerprint(trained.cfg), "step": trained.step, "paradigms": {}}
    if path.exists():
        kept = json.loads(path.read_text())
        if all(kept[name] == judged[name] for name in ("fingerprint", "step")):
            judged = kept
    parts = [Part("sentences", judged, sentences, pll.pseudo_perplexity, {})] if sentences else []
    parts += [Part(one.name, judged["paradigms"], one.sentences, pairs.accuracy, {"phenomenon": one.phenomenon})
              for one in paradigms]
    todo = []
    for part in parts:
        digest = hashlib.sha256(json.dumps(part.texts).encode()).hexdigest()
        if part.into.get(part.name, {}).get("sha256") != digest:
            todo.append((part, {"sha256": digest, **part.about},
                         pll.clozes(trained.words, part.texts, trained.cfg.pack.length)))

    batch_size = trained.cfg.eval.batch_size
    progress = Progress(0, sum(len(pll.plan(asked, batch_size)) for *_, asked in todo), path.parent.name, "batch")
    score = cloze.scorer(trained.model, trained.run, trained.state)
    told = time.monotonic()

    def watched(name, cloze):
        nonlocal told
        log_prob_B = score(cloze)
        progress.advance(progress.step + 1)
        if time.monotonic() - told > EVERY:
            told = time.monotonic()
            progress.show(name)
        return log_prob_B

    try:
        for part, about, asked in todo:
            given = pll.scores(functools.partial(watched, part.name), asked, batch_size)
            part.into[part.name] = about | part.measure(given)
            if judged["paradigms"]:
                judged |= pairs.summary(judged["paradigms"])
            files.write_json(path, judged)
    finally:
        progress.close()
    return judged
