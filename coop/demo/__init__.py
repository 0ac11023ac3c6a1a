"""What `python -m coop demo` trains, and the process that trains it.

`gpt.py` is an ordinary training program that knows nothing of coop; `worker.py` runs it once, plain
or inside a budget, and tells what it sees as lines of JSON.
"""
