"""The tasks of the built-in language, by name: labelled data whose best possible score is computed exactly."""

from mlm.data.language import pairs, subjects, tags, topics
from mlm.data.language.synthetic_task import SyntheticTask

FORMAT = 1  # of the examples: raise it where any of them changes
TASKS: dict[str, SyntheticTask] = {
    "topic": topics.TOPIC,
    "pair": pairs.PAIR,
    "tag": tags.TAG,
    "subject": subjects.SUBJECT,
}
