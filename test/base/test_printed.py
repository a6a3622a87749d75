"""Quiet calls discard their own output and no other."""

from __future__ import annotations

import sys
import threading

from cnn_harness.base.process import printed


def both(text):
    print(text)
    print(text, file=sys.stderr)


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def test_quiet_call_prints_nothing_and_records_standard_output(capsys):
    with printed.heard(quiet=True) as text:
        both("call")
        in_thread(printed.for_thread(both), "its thread")
        in_thread(both, "other thread")
        printed.aloud(both)("callback")
    both("after")
    assert capsys.readouterr() == ("other thread\ncallback\nafter\n",) * 2
    assert text.getvalue() == "call\nits thread\n"


def test_calls_that_overlap_restore_output(capsys):
    stdout = sys.stdout
    began, may_end = threading.Event(), threading.Event()

    def other():
        with printed.heard(quiet=True):
            began.set()
            may_end.wait(30)
            print("other")

    with printed.heard(quiet=False):
        thread = threading.Thread(target=other)
        thread.start()
        began.wait(30)
        print("loud")
    print("after")
    may_end.set()
    thread.join()
    assert sys.stdout is stdout and capsys.readouterr().out == "loud\nafter\n"
