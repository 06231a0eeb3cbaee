"""What every room stands on, and what knows of none: locks, interrupts, private files, text, DuckDB and Parquet.

Whoever opens a DuckDB or reads Parquet does so by ``native.py`` and ``parquet_files.py``, where everything those
libraries would do by themselves is switched off.
"""
