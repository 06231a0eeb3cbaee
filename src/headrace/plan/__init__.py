"""Plans: a small immutable algebra, rewrite rules, and the split into pipelines.

Start with ``nodes.py`` and ``exprs.py`` (what a plan is), then ``split.py`` (how
a view is cut between inserts and queries). ``rules/`` holds one rewrite a file.
Nothing here knows SQL text, an engine or storage.
"""
