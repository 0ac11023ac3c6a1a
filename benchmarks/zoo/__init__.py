"""A zoo of networks, recorded without the hardware."""
