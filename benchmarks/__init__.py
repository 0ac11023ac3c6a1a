"""The paper's evaluation: networks, and (later) the sweeps that run them under a budget."""
