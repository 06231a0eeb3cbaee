"""Statements, each a walk through the rooms below: CREATE and DROP (``define.py``), INSERT and COPY (``load.py``),
SELECT (``read.py``), EXPLAIN (``explain.py``)."""
