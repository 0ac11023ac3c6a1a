"""Traces of training steps, and the script that generates them."""
