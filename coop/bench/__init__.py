"""The paper's evaluation: every network, policy and budget in a process of its own.

cells      what is to be measured
sweep      measures the cells that a results file does not have yet
server     forks a process for every cell (`python -m coop.bench.server`)
worker     measures one cell, in that process
results    the results file
tables     the results as tables
figures    the results as pictures (needs matplotlib)
"""
