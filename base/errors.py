"""Errors of what a person gives: their first line is complete in itself, lists may follow."""

from __future__ import annotations


class OptionError(Exception):
    """Something asked for that cannot be."""


class DataError(Exception):
    """Data that is missing or wrong."""
