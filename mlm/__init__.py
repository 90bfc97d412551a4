"""A laboratory for masked language models: what changes when only the architecture, size or masking rate does?"""


def open(folder):
    """The trained model in a run's directory or in a Hugging Face folder, to use: `mlm.inference.language_model.LanguageModel`.

    hf:ORG/NAME is a folder that huggingface_hub fetches. Raises mlm.base.errors.ConfigError where there is none.
    """
    from mlm.inference import pretrained_io
    return pretrained_io.load(str(folder))
