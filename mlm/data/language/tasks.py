"""The tasks of the built-in language, by name: labelled data whose best possible score is computed exactly."""

from mlm.data.language import subjects, tags, topics

FORMAT = 1  # of the examples: raise it where any of them changes
TASKS = {task.name: task for task in (topics.TOPIC, topics.PAIR, tags.TAG, subjects.SUBJECT)}
