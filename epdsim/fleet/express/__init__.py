"""A fast way through fleets whose engines generate what they prefill, for text.

A request is no process and a step no plan, but a few numbers; the events are those of processes and plans to the last bit
(property FWD-EQ), at a fraction of the time.
"""

from epdsim.fleet.express.front import TextFleet, can_carry

__all__ = ["TextFleet", "can_carry"]
