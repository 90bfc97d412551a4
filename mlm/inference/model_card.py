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
    "CausalLM": "text-generation",
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MultipleChoice": "multiple-choice",
    "PreTraining": "",
}


def format_model_card(model, hf_config: dict) -> str:
    """The README.md of a LanguageModel. hf_config: the exported config.json."""
    cfg = model.config
    is_own = hf_config["model_type"] == "mlm"
    is_transformers = not is_own or "auto_map" in hf_config
    class_name = heads.get_model_class(hf_config)
    suffix = next((end for end in PIPELINES if class_name.endswith(f"For{end}")), None)
    is_run = model.source is None
    pipeline = PIPELINES.get(suffix or "", "")
    front = (
        ["library_name: transformers", *([f"pipeline_tag: {pipeline}"] if pipeline else [])] if is_transformers else []
    )
    name = f"{cfg.model.family} {cfg.model.cell}".rstrip()
    blocks = [
        "\n".join(["---", *front, "tags:", "- mlm", "---"]),
        f"# {name}, {cfg.model.num_layers} layers of {cfg.model.width}",
        f"A language model trained by `mlm` with the objective `{cfg.objective}`."
        if is_run
        else "Read from a Hugging Face folder and written again by `mlm`. The original model card says what it was "
        "trained on.",
        _describe_readers(
            f"AutoModel{f'For{suffix}' if suffix else ''}", is_transformers=is_transformers, is_own=is_own
        ),
    ]
    return "\n\n".join([*blocks, *(_describe_run(cfg) if is_run else [])]) + "\n"


def _describe_readers(auto_class: str, *, is_transformers: bool, is_own: bool) -> str:
    """The sentence on what reads the folder."""
    if not is_transformers:
        return "No class of transformers is this model: `mlm.load(FOLDER)` reads this folder."
    argument, code = ("(FOLDER, trust_remote_code=True)", ", by its modeling_mlm.py") if is_own else ("", "")
    classes = " and ".join(f"`{name}.from_pretrained{argument}`" for name in (auto_class, "AutoTokenizer"))
    return f"transformers' {classes} read this folder{code}, as does `mlm.load`."


def _describe_run(cfg) -> list[str]:
    """The paragraphs on the run that trained the model."""
    provenance, result, blocks = None, None, []
    with contextlib.suppress(errors.ConfigError):
        provenance, result = RunDirectory(cfg.workdir).read_provenance(), RunDirectory(cfg.workdir).read_result()
    if result:
        scores = result["evaluation"]
        rows = [
            f"| {name} | {scores[name]:.4f} | {scores[f'{name}_se']:.4f} |" for name in scores if f"{name}_se" in scores
        ]
        is_masked = objectives.get_loss_visibilities(cfg)["loss"] == types.Visibility.UNMASKED
        masked = f", {cfg.eval.mask_rate:.0%} of the words masked" if is_masked else ""
        blocks += [
            "## Held-out scores",
            "\n".join(["| score | value | standard error |", "|---|---|---|", *rows]),
            f"Over {scores['rows']:,} examples and {scores['predictions']:,} predictions of the held-out "
            f"split{masked}, after {result['steps']:,} updates.",
        ]
    else:
        blocks.append("Exported before the training ended: there are no held-out scores.")
    if provenance:
        last = provenance[-1]
        versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
        blocks += [
            "## Provenance",
            f"- commit {last['commit']}{' with changed files' if last['changed_files'] else ''}\n"
            f"- started {last['time']}, {len(provenance)} start{'s' * (len(provenance) > 1)}; "
            f"Python {last['python']}, {versions}\n"
            f"- fingerprint {fields.fingerprint(cfg)}",
        ]
    flat = fields.flatten(cfg, results_only=True)
    overrides = {name: value for name, value in flat.items() if value != fields.DEFAULT[name]}
    for name in (name for name in overrides if name.endswith("path")):  # without the folders of the training machine
        overrides[name] = ",".join(path.rpartition("/")[2] for path in overrides[name].split(","))
    config_json = json.dumps(overrides, indent=1)
    return [*blocks, "## Config", "What differs from the defaults:", f"```json\n{config_json}\n```"]
