"""Exports a model as a Hugging Face folder, with a model card: its architecture, provenance and held-out scores."""

import contextlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

import jax

from mlm import models, objectives
from mlm.base import errors, extras, fields, files, types
from mlm.base.labelled_objectives import LABELLED_OBJECTIVES
from mlm.data.tokenizers import hub_export
from mlm.data.tokenizers.hub_model import get_original_ids
from mlm.inference.decoding import SUPPRESSED_IDS
from mlm.models.hub import heads as label_heads
from mlm.models.hub import hub, settings
from mlm.objectives import heads as feature_heads
from mlm.objectives import replaced_token_detection
from mlm.training.run.directory import RunDirectory

MILESTONE_PREFIX = "step"  # of the name of a milestone's folder, inside that of the run
POOLING_FOLDER = "1_Pooling"  # of sentence-transformers
SENTENCE_POOLINGS = {
    "first": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
    "mean": "pooling_mode_mean_tokens",
}
GENERATOR_FOLDER = "generator"  # inside the folder of the discriminator, of replaced_token_detection
# What an upload replaces: files of these names that a repository has, and the folder has not, would be read beside it.
REPLACED_FILES = (
    *("model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json", "modeling_mlm.py"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "modules.json", "sentence_bert_config.json"),
    *(f"{POOLING_FOLDER}/config.json", f"{GENERATOR_FOLDER}/config.json", f"{GENERATOR_FOLDER}/model.safetensors"),
)
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
EXPORTED_FIELDS = ("objective", "pack.seq_len")
EXPORTED_SOURCE_FIELDS = ("data.corpus", "pack.source_len")  # also of a model that reads a source
# Also exported for a fine-tuned model.
EXPORTED_LABEL_FIELDS = (
    *(f"finetune.{name}" for name in ("pooling", "pooler", "layer_features", "head", "head_dim", "max_layer")),
    *("data.labelled.scores", "data.labelled.choice_columns"),
)
# By the end of a transformers class name.
PIPELINES = {
    "MaskedLM": "fill-mask",
    "CausalLM": "text-generation",
    "Seq2SeqLM": "translation",
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MultipleChoice": "multiple-choice",
    "PreTraining": "",
}


def save_pretrained(model, folder: str, *, sentence_transformers: bool = False, milestones: Iterable = ()) -> dict:
    """Implements `LanguageModel.save_pretrained`; milestones: the run's models there, for folders "stepN" in it.

    A model that no class of transformers computes is written with a config of our own, which `load_model` reads, and
    with classes in torch, which transformers reads with trust_remote_code=True; the note says why. Raises ConfigError
    if the folder is not empty, or no class in torch computes the states that sentence-transformers needs.
    """
    files.check_empty_folder("export", folder)
    with files.atomic_folder(folder) as path:
        done = _write_folder(model, path, sentence_transformers)
        for milestone in milestones:
            step_path = path / f"{MILESTONE_PREFIX}{milestone.milestone}"
            step_path.mkdir()
            _write_folder(milestone, step_path, sentence_transformers)
    return {"written": str(folder), **done}


def check_repository(name: str) -> None:
    """Raises ConfigError for what is no name of a repository, or without the package that uploads."""
    errors.require(REPOSITORY.fullmatch(name) is not None, "--push", name, "ORG/NAME, a repository of huggingface.co")
    extras.import_extra("huggingface_hub", "hub", f"--push={name}")


def push_folder(folder: str, name: str) -> list[str]:
    """Uploads a folder to the branch "main", each milestone's folder in it to a branch of its name; returns them.

    The repository, and a branch, is made where there is none. Of REPLACED_FILES it keeps those of the folder alone.
    Raises ConfigError if the server refuses it.
    """
    huggingface_hub = extras.import_extra("huggingface_hub", "hub", f"--push={name}")
    milestones = sorted(Path(folder).glob(f"{MILESTONE_PREFIX}*"), key=lambda path: (len(path.name), path.name))
    folders = {"main": Path(folder), **{path.name: path for path in milestones}}
    try:
        api = huggingface_hub.HfApi()
        api.create_repo(name, exist_ok=True)
        for branch, path in folders.items():
            if branch != "main":
                api.create_branch(name, branch=branch, exist_ok=True)
            patterns = {"ignore_patterns": f"{MILESTONE_PREFIX}*/*", "delete_patterns": list(REPLACED_FILES)}
            api.upload_folder(repo_id=name, folder_path=path, revision=branch, **patterns)
    except Exception as error:  # of the network, the token, the server
        raise errors.ConfigError(
            f"--push = {name!r}: cannot be uploaded ({errors.first_line(error)}); expected a repository that your "
            f"token (hf auth login) may write to, and a network; {folder} is complete"
        ) from None
    return list(folders)


def _write_folder(model, path, sentence_transformers) -> dict:
    """Writes the files of a model into an empty folder and returns {"model_type", "note"}."""
    cfg = model.config
    params, note = jax.device_get(model.params), ""
    generator = None  # a second folder, inside the first
    if model.source is not None:
        hf_config, tensors = _export_source(model, params)
    else:
        try:
            if objectives.get_visibility(cfg) is types.Visibility.CORRUPTED:
                (hf_config, tensors), generator = _export_electra(model, params)
            else:
                hf_config, tensors = _export_transformers(model, params)
        except errors.ConfigError as error:
            hf_config, tensors = _export_native(model, params)
            note = f"{error}; transformers reads the folder by classes of its own, with trust_remote_code=True"
    labelled = LABELLED_OBJECTIVES.get(cfg.objective)
    reads_words = labelled is not None and labelled.tags_words and model.source is None
    reads = {"reads_words": reads_words, "reads_source": models.reads_source(cfg)}
    num_types = 0 if models.reads_source(cfg) else cfg.model.type_vocab_size
    reads["adds_special"] = sentence_transformers
    tokenizer_files = hub_export.export_files(model.tokenizer, model.length, num_types, **reads)
    for part, exported in (("", (hf_config, tensors)), (GENERATOR_FOLDER, generator)):
        if exported is not None:
            (path / part).mkdir(exist_ok=True)
            for name, text in tokenizer_files.items():
                files.write_text(path / part / name, text)
            files.write_text(path / part / "README.md", format_model_card(model, exported[0]))
            hub.write_folder(path / part, *exported)
    if hf_config.get("is_encoder_decoder"):
        files.write_json(path / "generation_config.json", _build_generation_config(model, hf_config))
    if sentence_transformers:
        expected = "a model that reads a text alone"
        errors.require(not models.reads_source(cfg), "--sentence_transformers", cfg.model.family, expected)
        _write_sentence_transformer(path, model)
    return {"model_type": hf_config["model_type"], "note": note}


def _build_generation_config(model, hf_config) -> dict:
    """What makes generate(input_ids) of an encoder-decoder do what `mlm translate --num_beams=1` does."""
    order_V = get_original_ids(model.tokenizer)
    ids = {name: hf_config[name] for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")}
    never = [int(order_V[token]) for token in SUPPRESSED_IDS]
    return ids | {"max_length": model.length, "suppress_tokens": never, "use_cache": False}


def _write_sentence_transformer(path, model) -> None:
    """Writes what makes a folder one of sentence-transformers, which pools the last states as `mlm embed` does."""
    width = len(model.model.directions) * model.model.width
    modes = {mode: pooling == model.default_pooling for pooling, mode in SENTENCE_POOLINGS.items()}
    modules = [
        {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{name}"}
        for number, (name, folder) in enumerate((("Transformer", ""), ("Pooling", POOLING_FOLDER)))
    ]
    (path / POOLING_FOLDER).mkdir()
    for name, content in {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": model.length, "do_lower_case": False},
        f"{POOLING_FOLDER}/config.json": {"word_embedding_dimension": width, **modes},
    }.items():
        files.write_json(path / name, content)


def _export_source(model, params):
    """config.json and tensors of a model that came from such a folder, bit for bit."""
    source = model.source
    hf_config = {key: value for key, value in source.config_json.items() if key != "torch_dtype"}  # dtype's older name
    hf_config["dtype"] = "float32"
    order_V = get_original_ids(model.tokenizer)
    hf_config |= hub.build_changed_entries(hf_config, order_V)
    return hf_config, hub.export_tensors(
        params["model"], hf_config, order_V, source.unused_tensors, has_lm_head=model.has_lm_head
    )


def _export_transformers(model, params):
    """config.json and tensors of a transformers class. Raises ConfigError, with the reason, where none fits."""
    cfg, order_V = model.config, get_original_ids(model.tokenizer)
    has_labels = objectives.get_visibility(cfg) == types.Visibility.FULL
    has_head = has_labels and not objectives.get_embedding_pooling(cfg)
    pooler = cfg.finetune.pooler if has_labels else "bert"
    hf_config = hub.build_config_json(cfg.model, order_V, has_lm_head=not has_labels, pooler=pooler)
    if has_head:
        hf_config |= label_heads.build_config_json(cfg, model.dataset_info.classes, hf_config)
    elif has_labels:
        (with_lm_head,) = hf_config["architectures"]
        hf_config["architectures"] = [with_lm_head.removesuffix(label_heads.MASKED_LM_CLASS) + "Model"]
    tensors = hub.export_tensors(params["model"], hf_config, order_V, has_lm_head=not has_labels)
    if has_head:
        tensors |= label_heads.export_tensors(cfg.objective, params["objective"], hf_config)
    return hf_config, tensors


def _export_electra(model, params):
    """config.json and tensors of ELECTRA's discriminator, and those of its generator.

    Raises ConfigError, with the reason, where one of them is no ELECTRA.
    """
    cfg, order_V = model.config, get_original_ids(model.tokenizer)
    if cfg.model.directionality == types.Directionality.MIXED:  # of this objective's examples none is causal
        cfg = fields.override(cfg, {"model.directionality": types.Directionality.BIDIRECTIONAL.value})
    settings.require_fields(cfg.model, {"positions": "learned"}, "transformers' electra needs")
    discriminator_config = (
        hub.build_config_json(cfg.model, order_V, pooler="electra") | label_heads.DISCRIMINATOR_FIELDS
    )
    activation, expected = cfg.model.activation, "gelu, which is also the activation of the discriminator's head"
    errors.require(activation == "gelu", "config.model.activation", activation, expected)
    generator_model = replaced_token_detection.build_generator_config(cfg)
    generator_config = hub.build_config_json(generator_model, order_V, pooler="electra")
    tensors = hub.export_tensors(params["model"], discriminator_config, order_V, has_lm_head=False)
    tensors |= label_heads.export_tensors(cfg.objective, params["objective"], discriminator_config)
    generator_params = replaced_token_detection.get_generator_params(params)
    generator_tensors = hub.export_tensors(generator_params, generator_config, order_V)
    return (discriminator_config, tensors), (generator_config, generator_tensors)


def _export_native(model, params):
    """config.json with a config of our own, and tensors under our own names."""
    cfg, order_V = model.config, get_original_ids(model.tokenizer)
    flat, visibilities = fields.flatten(cfg), set(objectives.get_loss_visibilities(cfg).values())
    has_labels = types.Visibility.FULL in visibilities
    exported = EXPORTED_FIELDS + EXPORTED_SOURCE_FIELDS * models.reads_source(cfg) + EXPORTED_LABEL_FIELDS * has_labels
    kept = {name: flat[name] for name in flat if name.startswith("model.") or name in exported}
    if visibilities <= {types.Visibility.UNMASKED, types.Visibility.BOUND}:
        kept["objective"] = "mlm"
    heads, labelled = _list_torch_heads(cfg), LABELLED_OBJECTIVES.get(cfg.objective)
    config_json = settings.build_own_config_json(
        kept,
        order_V,
        model.dataset_info.classes if has_labels else (),
        heads,
        labelled.problem_type if labelled else "",
    )
    config_json["feature_layers"] = [*feature_heads.select_layers(cfg)]  # 0: the embeddings
    return config_json, hub.export_own_tensors(params, order_V)


def _list_torch_heads(cfg) -> list[str]:
    """The ends of the names of the classes in torch that read a model: "", its states, and then its heads.

    Before them stand those with a new head for labels, for a model that has none.
    """
    if models.reads_source(cfg):
        return [settings.SEQ2SEQ_HEAD]
    visibilities, finetune = set(objectives.get_loss_visibilities(cfg).values()), cfg.finetune
    heads = [*settings.LABEL_HEADS * (types.Visibility.FULL not in visibilities), ""]
    if visibilities & {types.Visibility.CAUSAL, types.Visibility.TWO_STACK}:
        heads.append("ForCausalLM")
    if visibilities & {types.Visibility.UNMASKED, types.Visibility.BOUND}:
        heads.append("ForMaskedLM")
    if types.Visibility.FULL in visibilities:
        label_head = LABELLED_OBJECTIVES[cfg.objective].hub_class
        is_there = finetune.head == "linear" and finetune.pooler != "modernbert"
        heads += [label_head] if is_there and label_head in settings.LABEL_HEADS else []
    return heads


def format_model_card(model, hf_config: dict) -> str:
    """The README.md of a LanguageModel. hf_config: the exported config.json."""
    cfg, is_run, is_own = model.config, model.source is None, hf_config["model_type"] == "mlm"
    class_name = label_heads.get_model_class(hf_config)
    head = next((end for end in PIPELINES if class_name.endswith(f"For{end}")), "")
    pipeline = PIPELINES.get(head)
    front = ["library_name: transformers", *[f"pipeline_tag: {pipeline}"] * bool(pipeline)]
    loaders, code = (f"AutoModel{head and f'For{head}'}", "AutoTokenizer"), ""
    argument = "(FOLDER, trust_remote_code=True)" if "auto_map" in hf_config else ""
    if is_own:
        code = f", by its {hf_config['auto_map'][loaders[0]].partition('.')[0]}.py"
    classes = " and ".join(f"`{name}.from_pretrained{argument}`" for name in loaders)
    readers = f"transformers' {classes} read this folder{code}, as does `mlm.load`."
    origin = f"A language model trained by `mlm` with the objective `{cfg.objective}`."
    if not is_run:
        origin = (
            "Read from a Hugging Face folder and written again by `mlm`. The original model card says what it was "
            "trained on."
        )
    name = f"{cfg.model.family} {cfg.model.cell}".rstrip()
    blocks = [
        "\n".join(["---", *front, "tags:", "- mlm", "---"]),
        f"# {name}, {cfg.model.num_layers} layers of {cfg.model.width}",
        origin,
        readers,
    ]
    return "\n\n".join([*blocks, *(_describe_run(cfg, model.milestone) if is_run else [])]) + "\n"


def _describe_run(cfg, milestone: int | None) -> list[str]:
    """The paragraphs on the run that trained the model, or the model at a milestone."""
    provenance, result, blocks = None, None, []
    with contextlib.suppress(errors.ConfigError):
        provenance, result = RunDirectory(cfg.workdir).read_provenance(), RunDirectory(cfg.workdir).read_result()
    if milestone is not None:
        blocks.append(f"The model after {milestone:,} updates.")
    elif result:
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
    for name in overrides:  # without the folders of the training machine
        if name.endswith("path") or name in fields.PATH_FIELDS:
            overrides[name] = ",".join(path.rpartition("/")[2] for path in overrides[name].split(","))
    config_json = json.dumps(overrides, indent=1)
    return [*blocks, "## Config", "What differs from the defaults:", f"```json\n{config_json}\n```"]
