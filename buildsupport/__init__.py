"""How the C libraries, the cffi modules and the protobuf code are built. Used by setup.py and the tests."""
