"""The console commands: a signal ends each in one line from its first moment on."""

from __future__ import annotations

import sys

from base.process import startup


def poprun() -> None:
    """The command poprun."""
    startup.begin("poprun")
    import poprun

    poprun.script()


def gc_profile() -> None:
    """The command gc-profile."""
    startup.begin("gc-profile")
    from harness.commands.gc_profile import main

    sys.exit(main())


def gc_info() -> None:
    """The command gc-info."""
    startup.begin("gc-info")
    from harness.commands.gc_info import main

    sys.exit(main())
