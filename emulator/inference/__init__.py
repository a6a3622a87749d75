"""Programs that answer: inference in a session, and frozen graphs for other runtimes."""
