"""The real vLLM as system under test: whichever release from 0.25 to 0.33 is installed, driven in this process.

Nothing of vLLM is imported before it is asked for.
"""

from epdsim.sut.vllm.broadcast import vllm_broadcast
from epdsim.sut.vllm.caches import VllmCaches, vllm_caches
from epdsim.sut.vllm.engine import VllmEngine, installed_version, vllm_play
from epdsim.sut.vllm.identity import VllmIdentity, vllm_identity
from epdsim.sut.vllm.media import vllm_media
from epdsim.sut.vllm.positions import vllm_positions
from epdsim.sut.vllm.protocol import VllmProtocol, vllm_protocol
from epdsim.sut.vllm.release import is_installed
from epdsim.sut.vllm.sessions import VllmSessions
from epdsim.sut.vllm.worked import vllm_engine

__all__ = [
    "VllmCaches",
    "VllmEngine",
    "VllmIdentity",
    "VllmProtocol",
    "VllmSessions",
    "installed_version",
    "is_installed",
    "vllm_broadcast",
    "vllm_caches",
    "vllm_engine",
    "vllm_identity",
    "vllm_media",
    "vllm_play",
    "vllm_positions",
    "vllm_protocol",
]
