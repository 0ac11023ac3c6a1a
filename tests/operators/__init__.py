"""Every operator of torch's own database, with everything evicted after every operator."""
