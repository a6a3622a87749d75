"""The ends of an instance among others, without any."""

from __future__ import annotations

import json
import signal
import threading
from types import SimpleNamespace

import pytest

from base.errors import OptionError
from base.process.signals import Signals, StopRequest
from harness.cluster.cluster import Cluster
from harness.processes.heartbeat import PeerError
from harness.processes.team import Team


@pytest.mark.parametrize("begun", [True, False])
def test_a_request_to_end_while_another_instance_is_lost_tells_where_the_run_is(begun, monkeypatch):
    """poprun may ask before the heartbeat has noticed: the message is given then, and once."""
    team, told = Team(), []
    team._heartbeat = SimpleNamespace(stop=lambda: None)

    def asked(_: object) -> None:
        raise StopRequest(signal.SIGTERM)

    monkeypatch.setattr(team, "_leave", asked)
    if begun:
        team.before_exit = told.append
    with pytest.raises(StopRequest) as caught:
        team.__exit__(RuntimeError, RuntimeError("Connection reset by peer"), None)
    assert caught.value.hinted is begun
    late = threading.Thread(target=team._call_before_exit, args=("instance 1 is lost",))
    late.start()
    late.join()
    assert told == ["SIGTERM"] * begun


def test_a_signal_while_an_instance_waits_for_the_others_counts_at_the_next_place():
    """An instance that left alone then would be missed by the others."""
    team, signals, asked = Team(), Signals(), []

    def all_gather_flag(holds: bool) -> list[int]:
        asked.append(holds)
        signals.received = signal.SIGTERM  # as if it came now
        return [1] if holds else []

    team.group = SimpleNamespace(all_gather_flag=all_gather_flag, all_gather=lambda text: ["0", text])
    team.stop_together(signals)
    assert not team.agreed_to_stop
    with pytest.raises(StopRequest):
        team.stop_together(signals)
    assert team.agreed_to_stop and asked == [False, True]


@pytest.mark.parametrize("text", [None, "", "[]", "{", "7", "[" * 100_000])
def test_what_is_no_status_says_nothing(text):
    team = Team(Cluster(("a:1", "b:1"), 1), 0.2)
    team.group = SimpleNamespace(status_of=lambda instance: text)
    assert team._status(0) == {}


@pytest.mark.parametrize(
    ("statuses", "error", "message"),
    [
        ([None, {}, {"met": "these"}], None, ""),
        (
            [{"met": "those"}],
            OptionError,
            r"instance 0 \(a:1\) belongs to another run.* its instances are a:1, c:1; correct",
        ),
        ([{}], PeerError, r"instance 0 \(a:1\) met another process than this one.* within 0.2 s.* are a:1, c:1; give all"),
        ([None], PeerError, r"instance 0 \(a:1\) met another process than this one, or none, within 0.2 s"),
    ],
)
def test_instances_begin_when_each_has_met_the_same_ones(statuses, error, message):
    """No collective is called before: it would disturb a run that uses the address already."""
    team, set_texts = Team(Cluster(("a:1", "b:1"), 1), 0.2), []
    answers = iter(statuses)

    def status_of(instance: int) -> str | None:
        now = next(answers, statuses[-1])
        return None if now is None else json.dumps({"addresses": ["a:1", "c:1"], **now})

    team._heartbeat = SimpleNamespace(wait_for_all=lambda: "these")
    team.group = SimpleNamespace(set_status=set_texts.append, status_of=status_of, join=lambda identity: None)
    if error is None:
        team._meet()
    else:
        with pytest.raises(error, match=message):
            team._meet()
    assert [json.loads(text).get("met") for text in set_texts] == [None, "these"]
