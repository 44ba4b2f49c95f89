"""Properties as monitors over events: one statement of each judges the model, a simulation, a recording and a real vLLM."""

from epdsim.spec.engine_state import EngineState
from epdsim.spec.judge import Judge, JudgeInBatches, judge
from epdsim.spec.property import Broken, Finding, Level, Monitor, Outcome, Property, Reached, Verdict
from epdsim.spec.register import FAMILIES, JUDGED, OF_FLEETS, REGISTER, properties_of, uncovered
from epdsim.spec.story import tell_story, timeline

__all__ = [
    "FAMILIES",
    "JUDGED",
    "OF_FLEETS",
    "REGISTER",
    "Broken",
    "EngineState",
    "Finding",
    "Judge",
    "JudgeInBatches",
    "Level",
    "Monitor",
    "Outcome",
    "Property",
    "Reached",
    "Verdict",
    "judge",
    "properties_of",
    "tell_story",
    "timeline",
    "uncovered",
]
