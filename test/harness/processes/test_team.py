"""The ends of an instance among others, without any."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

from base.process.signals import Signals, StopRequest
from harness.processes.team import Team


@pytest.mark.parametrize("begun", [True, False])
def test_a_request_to_end_while_another_instance_is_lost_tells_where_the_run_is(begun, monkeypatch):
    """poprun may ask before the heartbeat has noticed: the message is given then, and once."""
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


def test_a_signal_while_an_instance_waits_for_the_others_counts_at_the_next_place():
    """An instance that left alone then would be missed by the others."""
    team, signals, asked = Team(), Signals(), []

    def where(holds: bool) -> list[int]:
        asked.append(holds)
        signals.received = signal.SIGTERM  # as if it came now
        return [1] if holds else []

    team.group = SimpleNamespace(where=where)
    team.stop_together(signals)
    assert not team.agreed_to_stop
    with pytest.raises(StopRequest):
        team.stop_together(signals)
    assert team.agreed_to_stop and asked == [False, True]
