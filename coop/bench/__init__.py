"""The paper's evaluation: every network, policy and budget in a process of its own.

cells      what is to be measured
worker     measures one cell (`python -m coop.bench.worker`)
sweep      runs all cells that a results file does not have yet
results    the results file
tables     the results as tables
figures    the results as pictures (needs matplotlib)
"""
