"""The model card of an exported model: its architecture, its provenance and its held-out scores."""

import contextlib
import json

from mlm import objectives
from mlm.base import errors, fields, types
from mlm.models.hub import heads
from mlm.training.run.directory import RunDirectory

# By the end of a transformers class name.
PIPELINES = {
    "MaskedLM": "fill-mask",
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MultipleChoice": "multiple-choice",
    "PreTraining": "",
}


def format_model_card(model, hf_config: dict) -> str:
    """The README.md of a LanguageModel. hf_config: the exported config.json."""
    cfg = model.config
    is_transformers = hf_config["model_type"] != "mlm"
    class_name = heads.get_model_class(hf_config)
    suffix = next((end for end in PIPELINES if class_name.endswith(f"For{end}")), None)
    lines = ["---"]
    if is_transformers:
        lines += [
            "library_name: transformers",
            *([f"pipeline_tag: {PIPELINES[suffix]}"] if suffix and PIPELINES[suffix] else []),
        ]
    lines += [
        "tags:",
        "- mlm",
        "---",
        "",
        f"# {cfg.model.family} {cfg.model.cell}".rstrip() + f", {cfg.model.num_layers} layers of {cfg.model.width}",
        "",
    ]
    if model.source is None:
        lines += [f"A language model trained by `mlm` with the objective `{cfg.objective}`.", ""]
    else:
        lines += [
            "Read from a Hugging Face folder and written again by `mlm`. The original model card says what it "
            "was trained on.",
            "",
        ]
    if is_transformers:
        lines += [
            f"transformers' `AutoModel{f'For{suffix}' if suffix else ''}.from_pretrained` and "
            "`AutoTokenizer.from_pretrained` read this folder, as does `mlm.load`.",
            "",
        ]
    else:
        lines += ["No class of transformers is this model: `mlm.load(FOLDER)` reads this folder.", ""]
    if model.source is None:
        lines += _format_run(cfg)
    return "\n".join(lines)


def _format_run(cfg) -> list[str]:
    """The lines on the run that trained the model."""
    provenance, result, lines = None, None, []
    with contextlib.suppress(errors.ConfigError):
        provenance, result = RunDirectory(cfg.workdir).read_provenance(), RunDirectory(cfg.workdir).read_result()
    if result:
        lines += ["## Held-out scores", "", "| score | value | standard error |", "|---|---|---|"]
        scores = result["evaluation"]
        lines += [
            f"| {name} | {scores[name]:.4f} | {scores[f'{name}_se']:.4f} |" for name in scores if f"{name}_se" in scores
        ]
        is_masked = objectives.get_loss_visibilities(cfg)["loss"] == types.Visibility.UNMASKED
        masked = f", {cfg.eval.mask_rate:.0%} of the words masked" if is_masked else ""
        lines += [
            "",
            f"Over {scores['rows']:,} examples and {scores['predictions']:,} predictions of the held-out "
            f"split{masked}, after {result['steps']:,} updates.",
            "",
        ]
    else:
        lines += ["Exported before the training ended: there are no held-out scores.", ""]
    if provenance:
        last = provenance[-1]
        versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
        changed = " with changed files" if last["changed_files"] else ""
        lines += [
            "## Provenance",
            "",
            f"- commit {last['commit']}{changed}",
            f"- started {last['time']}, {len(provenance)} start{'s' * (len(provenance) > 1)}; "
            f"Python {last['python']}, {versions}",
            f"- fingerprint {fields.fingerprint(cfg)}",
            "",
        ]
    overrides = {
        name: _strip_folders(value) if name.endswith("path") else value
        for name, value in fields.flatten(cfg, results_only=True).items()
        if value != fields.DEFAULT[name]
    }
    return [
        *lines,
        "## Config",
        "",
        "What differs from the defaults:",
        "",
        "```json",
        json.dumps(overrides, indent=1),
        "```",
        "",
    ]


def _strip_folders(paths: str) -> str:
    """The file names alone, since the folders are those of the training machine."""
    return ",".join(path.rpartition("/")[2] for path in paths.split(","))
