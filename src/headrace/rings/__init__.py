"""The ring: a stream's newest rows in shared memory, for queries that read it as it arrives (003 §3.2-3.4).

A ring has a fixed number of slots a column; tuple ``t`` lies in slot ``t mod capacity``. Writers of any thread or
process *claim* a range of ids, write it, and publish it; readers never see an id before all smaller ones are there.
A reader copies a range out and then makes sure that nobody claimed its slots meanwhile.
"""

from headrace.rings.ring import Ring
from headrace.rings.scan import Scan

__all__ = ["Ring", "Scan"]
