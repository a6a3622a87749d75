"""What a signal does before a command has begun and after it has ended: it ends the process with one line.

The first lines of every script call this, as the imports below them take most of a second, in which an interrupt would
otherwise be a traceback. That is why so little is imported here.
"""

import os
import signal
from functools import partial


def begin(prog: str) -> None:
    """From now on such a signal ends the process at once, in one line."""
    for number in asking():
        signal.signal(number, partial(_leave, prog))


def asking() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to end. A SIGHUP that is ignored, as under nohup, stays so."""
    hung_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, *hung_up)  # poprun says it with SIGUSR1


def _leave(prog: str, number: int, frame: object) -> None:
    try:
        os.write(2, f"\n{prog}: stopped by {signal.Signals(number).name}\n".encode())
    finally:  # also when the terminal has gone
        os._exit(128 + number)
