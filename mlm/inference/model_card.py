"""The model card that goes out with a model: what it is, what it was made by, and its held-out scores."""
import contextlib
import json

from mlm import objectives
from mlm.base import errors, fields
from mlm.inference.language_model import LanguageModel
from mlm.models.hub import heads
from mlm.train.run import directory

PIPELINES = {"MaskedLM": "fill-mask", "SequenceClassification": "text-classification",
             "TokenClassification": "token-classification"}  # by the end of a class of theirs


def text(model: LanguageModel, said: dict) -> str:
    """README.md. said: the config.json that it stands beside."""
    cfg, workdir = model.cfg, model.cfg.workdir
    made, result = None, None
    if model.source is None:
        with contextlib.suppress(errors.ConfigError):
            made, result = directory.read_provenance(workdir), directory.read_result(workdir)
    theirs = said["model_type"] != "mlm"
    named = heads.named(said)
    reads = next((end for end in PIPELINES if named.endswith(f"For{end}")), None)
    pipeline = [f"pipeline_tag: {PIPELINES[reads]}"] if reads else []
    lines = ["---", *(["library_name: transformers", *pipeline] if theirs else []), "tags:", "- mlm", "---", "",
             f"# {cfg.model.family} {cfg.model.cell}".rstrip() +
             f", {cfg.model.num_layers} layers of {cfg.model.width}", "",
             f"A language model trained by `mlm` with the objective `{cfg.objective}`." if model.source is None else "Read from a Hugging Face folder and written again by `mlm`; its own model " "card says what it was trained on.",
             "",
             f"transformers' `AutoModel{f'For{reads}' if reads else ''}.from_pretrained` and " "`AutoTokenizer.from_pretrained` read this folder, as does `mlm.open`." if theirs else "No class of transformers is this model: `mlm.open(FOLDER)` reads this folder.",
             ""]
    if result:
        lines += ["## Held-out scores", "", "| score | value | standard error |", "|---|---|---|"]
        found = result["evaluation"]
        lines += [f"| {name} | {found[name]:.4f} | {found[f'{name}_se']:.4f} |" for name in found
                  if f"{name}_se" in found]
        masked = f", {cfg.eval.mask_rate:.0%} of the words masked" if objectives.losses(cfg)["loss"] == "rest" else ""
        lines += ["", f"Over {found['rows']:,} rows and {found['predictions']:,} predictions of the held-out split"
                  f"{masked}, after {result['steps']:,} updates.", ""]
    elif model.source is None:
        lines += ["Written before its training ended: there are no held-out scores.", ""]
    if made:
        last = made[-1]
        versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
        changed = " with changed files" if last["changed_files"] else ""
        lines += ["## Provenance", "", f"- commit {last['commit']}{changed}",
                  f"- started {last['time']}, {len(made)} start{'s' * (len(made) > 1)}; Python {last['python']}, "
                  f"{versions}", f"- fingerprint {fields.fingerprint(cfg)}", ""]
    if model.source is None:
        flat, default = fields.flatten(cfg, results_only=True), fields.DEFAULT
        changed = {name: _named(value) if name.endswith("path") else value for name, value in flat.items()
                   if value != default[name]}
        lines += ["## Config", "", "What differs from the defaults:", "", "```json", json.dumps(changed, indent=1),
                  "```", ""]
    return "\n".join(lines)


def _named(paths: str) -> str:
    """Paths without their folders, which are of the machine that trained."""
    return ",".join(path.rpartition("/")[2] for path in paths.split(","))
