"""The one benchmark harness: every measurement in a process of its own, into rows of one format.

cells      what is to be measured
runner     measures the cells that a results file does not have yet
client     talks to the process that starts the cells
server     that process: forks one for every cell (`python -m benchmarks.harness.server`)
worker     measures one cell, in its process
operators  times single operators, in a cell
results    the results file
checks     what is measured on a GPU: bits, step times, limits
predict    the simulator's step times against measured ones
tables     the rows as tables
figures    the rows as pictures (needs matplotlib)
sweep      `python -m coop bench`
plot       `python -m coop plot`
arguments  what the commands have in common

benchmarks/README.md has the commands and the format of the rows.
"""
