"""Continuous views: what each insert leaves, and what each query makes of it.

``compiled.py`` turns a definition into pipelines; ``reading.py`` answers queries
from merged state and remembers the answer until something it rests on changes.
"""
