"""Data sets; every file without a leading underscore is a plug-in."""
