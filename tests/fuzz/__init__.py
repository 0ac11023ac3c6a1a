"""Random programs, plain and inside a budget: the same bits."""
