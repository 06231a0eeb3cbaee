"""Tables: their rows, the database's own (``rows.py``) or in files (``files.py``), and plans over a snapshot of them
(``query.py``)."""
