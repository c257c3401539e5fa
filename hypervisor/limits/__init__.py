"""Limit files: makes, writes and reads them; the only importer of the cffi module _abi."""
