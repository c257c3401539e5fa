"""Reads the pages of docs/ for the tests: blocks of commands that are to be run, and tables after a mark."""
