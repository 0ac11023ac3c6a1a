"""Tests of the native core, without torch: against slow and obvious models, and fixed traces."""
