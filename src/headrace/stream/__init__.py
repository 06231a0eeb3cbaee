"""What happens to rows that come by a stream: the stages of whatever is kept of it (``intake.py``), queries of the
stream itself while their windows last (``ad_hoc.py``), rows and batches that other processes bring (``writer.py``,
``inbox.py``)."""
