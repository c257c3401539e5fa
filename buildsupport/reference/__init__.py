"""Pages of docs/ that are made from the code: `python -m buildsupport.reference` writes them all.

A page is a function that returns its whole text, so that a test can compare it with the file.
"""
