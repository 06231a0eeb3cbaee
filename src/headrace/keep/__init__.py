"""The keeper: one life cycle for every relation that is kept.

A kept relation (``kept.py``) is a few states and the stages that change them. It is founded, fed by inserts, merged,
read, begun again, dropped and reopened by one keeper (``keeper.py``), whatever it is: a continuous view, a sample, or
what a program brings along (``family.py``).

    insert ── stages ── state rows ── admit ── one commit ── merge when due        keeper.py, compaction.py
    query  ── states up to its epoch (resident.py) ── evaluate ── kept answer      answers.py
"""
