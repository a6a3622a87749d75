"""Runs a program without its standard output: silent.py PROGRAM [ARGUMENT]...; errors are still seen."""

import os
import sys

os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.execvp(sys.argv[1], sys.argv[1:])
