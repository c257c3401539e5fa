"""All tests."""

import os

# Programs under test start from bytecode, as they do where they are installed; to compile them is half of a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
