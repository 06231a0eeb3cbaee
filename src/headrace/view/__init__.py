"""Continuous views: what each insert leaves, and what each query makes of it (000 ch. 4).

``making.py`` makes one of CREATE VIEW; ``continuous.py`` is one to its keeper; ``compiled.py`` has its pipelines, which
``sharing.py`` runs together with those of other views; ``retention.py`` lets groups go by their own time.
"""
