"""Callbacks for training frameworks; each module needs its framework (an optional extra).

`coop.integrations.hf` for Hugging Face transformers, `coop.integrations.lightning` for Lightning.
"""
