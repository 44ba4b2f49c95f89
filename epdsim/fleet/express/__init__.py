"""A fast way for runs of which only the figures are wanted: text requests through engines that generate what they prefill.

The figures are those of `epdsim.fleet.simulate` to the last bit (property FWD-EQ), at a fraction of the time: a request is no
process and a step no plan, but a few numbers. What such numbers cannot tell, `run_express` declines.
"""

from epdsim.fleet.express.counts import RunCounts
from epdsim.fleet.express.front import run_express

__all__ = ["RunCounts", "run_express"]
