"""Uploads an exported folder to a repository of huggingface.co."""

import re
from pathlib import Path

from mlm.base import errors, extras
from mlm.inference.export import MILESTONE_PREFIX

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def check_repository(name: str) -> None:
    """Raises ConfigError for what is no name of a repository, or without the package that uploads."""
    errors.require(REPOSITORY.fullmatch(name) is not None, "--push", name, "ORG/NAME, a repository of huggingface.co")
    extras.import_extra("huggingface_hub", "hub", f"--push={name}")


def push_folder(folder: str, name: str) -> list[str]:
    """Uploads a folder to the branch "main", each milestone's folder in it to a branch of its name; returns them.

    The repository, and a branch, is made where there is none. Raises ConfigError if the server refuses it.
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
            ignored = f"{MILESTONE_PREFIX}*/*"
            api.upload_folder(repo_id=name, folder_path=path, revision=branch, ignore_patterns=ignored)
    except Exception as error:  # of the network, the token, the server
        raise errors.ConfigError(
            f"--push = {name!r}: cannot be uploaded ({errors.first_line(error)}); expected a repository that your "
            f"token (hf auth login) may write to, and a network; {folder} is complete"
        ) from None
    return list(folders)
