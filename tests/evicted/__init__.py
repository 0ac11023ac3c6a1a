"""Whatever of torch's Python interface takes tensors, with every argument evicted first."""
