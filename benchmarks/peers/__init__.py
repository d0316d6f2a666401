"""The servers that Stoker is measured beside, each as its own documentation would have it written.

`environments` installs them, `contest` starts and ends them. The `with_*` files are the servers themselves: they run in
the peer's own virtual environment and import nothing of Stoker. They read what to serve from their environment:
BENCH_TASK (noop or minilm), BENCH_PORT, and BENCH_MODEL (a folder) for minilm.
"""
