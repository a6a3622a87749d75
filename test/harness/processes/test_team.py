"""The ends of an instance among others, without any."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

from base.process.signals import StopRequest
from harness.processes.team import Team


@pytest.mark.parametrize("begun", [True, False])
def test_a_request_to_end_while_another_instance_is_lost_tells_where_the_run_is(begun, monkeypatch):
    """poprun may ask before the heartbeat has noticed: what is to be told is told then, and once."""
    team, told = Team(), []
    team._heart = SimpleNamespace(stop=lambda: None)

    def asked(_: object) -> None:
        raise StopRequest(signal.SIGTERM)

    monkeypatch.setattr(team, "_leave", asked)
    if begun:
        team.before_exit = told.append
    with pytest.raises(StopRequest) as caught:
        team.__exit__(RuntimeError, RuntimeError("Connection reset by peer"), None)
    assert caught.value.hinted is begun
    late = threading.Thread(target=team._tell, args=("instance 1 is lost",))
    late.start()
    late.join()
    assert told == ["SIGTERM"] * begun
