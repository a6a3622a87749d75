"""Errors in a person's input: the first line is complete in itself, lists may follow."""

from __future__ import annotations


class OptionError(Exception):
    """Options that cannot be met."""


class DataError(Exception):
    """Missing or wrong data."""
