"""Every peer in one harness: what a user could pick instead of coop, each in processes of its own.

    python -m benchmarks.peers --size tiny --out build/peers.json     # make bench-quick
    python -m benchmarks.peers --size paper --minutes 10 --out FILE   # a slice, on a GPU

`ways.py` has the peers, `cell.py` is a process that measures one of them, `__main__.py` runs what
is missing and goes on where it was stopped, `pareto.py` draws step time against memory.
"""
