"""Readers: whatever a program or a file gives, as Arrow rows of declared types; each value kept exactly, or refused.

Large input is described first (``files.py``) and read in slices, here or in Spark tasks.
"""
