"""Benchmarks: Headrace beside its peers, in one run, on one machine, with the bars it is held to.

Every system answers the same SQL over the same files, runs are interleaved so
that a slow minute of the machine hits all alike, and every answer is compared
with every other before a figure is written. A missed bar is printed as missed.

    python -m bench --help
"""
