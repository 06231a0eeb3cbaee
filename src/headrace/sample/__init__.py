"""Samples: a fixed number of rows, every subset of that size equally likely, in parallel (000 ch. 5)."""

from headrace.sample.merging import Sampled, merge
from headrace.sample.reservoir import Reservoir
from headrace.sample.shares import shares

__all__ = ["Reservoir", "Sampled", "merge", "shares"]
