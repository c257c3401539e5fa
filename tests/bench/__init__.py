"""Benches: `make bench` prints one table. One file a subject, bench_<subject>.py, with a function measure()."""
