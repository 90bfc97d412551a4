"""The breaker tells bit-equal from different, and named from silent; and what it found stays mended."""
import logging
import time

import orbax.checkpoint
import pytest
from absl import logging as absl_logging

from launch import command
from mlm.train.run import checkpoint


def test_a_clock_that_stands_still_is_named_before_a_checkpoint_waits_for_it(monkeypatch):
    checkpoint.check_clock()
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    with pytest.raises(OSError) as stands:
        checkpoint.save(None, None, None, None)
    code, said = command.outside(stands.value)
    assert code == 1 and said == ("error: the clock of this machine stands still; the same command continues when it "
                                  "goes")


def test_an_error_of_orbax_s_threads_is_told_once_by_us():
    def record(path, failed):
        return logging.LogRecord("absl", logging.ERROR, path, 1, "raised an exception", (), failed and (
            ValueError, ValueError("No space left on device"), None))

    assert not command.shown(record(orbax.checkpoint.__file__, failed=True))
    assert command.shown(record(orbax.checkpoint.__file__, failed=False))
    assert command.shown(record(absl_logging.__file__, failed=True))
    assert command.shown(record(checkpoint.__file__, failed=True))
