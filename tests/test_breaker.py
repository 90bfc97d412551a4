"""The breaker tells bit-equal from different, and named from silent; and what it found stays mended."""
import time

import pytest

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
