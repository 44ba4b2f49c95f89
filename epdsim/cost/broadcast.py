"""How long it takes to tell every tensor-parallel rank the plan of a step.

The mechanism is that of vLLM's message queue (PRs 6183, 26961, 48442, 50606): a plan is serialised once; a message below the
chunk size is written once into a shared-memory ring and copied out of it by all ranks in parallel; one at or above it goes over
a local socket, once per rank. A tensor that occurs several times in a plan is in the message once (PR 52041).
"""

from __future__ import annotations

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.cost.checks import non_negative, positive

_COPY_BYTES_PER_MS = 15_482_880 / 1.75
"""One pass over memory, 8.8 GB/s, such that ten passes over 15,482,880 bytes take 17.5 ms; see `BroadcastProfile`."""

FREE_BYTES_PER_MS = 1e12
"""A rate so high, a petabyte per second, that its part costs nothing."""


@record
class BroadcastLoad:
    """What one plan weighs.

    Attributes:
        header_bytes: Everything in the message that is not tensor data.
        payload_bytes: Data of the unique tensors.
        num_unique_tensors: Tensors in the message.
        num_items: Placeholders, with or without data, repeats included.
        readers: Tensor-parallel ranks in processes of their own; 0 when there is nobody to tell.
    """

    header_bytes: int
    payload_bytes: int
    num_unique_tensors: int
    num_items: int
    readers: int

    @property
    def message_bytes(self) -> int:
        """Length of the message, by which the ring decides."""
        return self.header_bytes + self.payload_bytes


@record
class BroadcastProfile:
    """The constants of one host and release; all of them are plain parameters.

    The defaults stand for vLLM 0.25.1 as measured in PR 52041, tensors of 15,482,880 bytes at TP 4 with in-band data: 17.5 ms per
    unique tensor, which is the slope from 8 to 26 images less that of the stripped arm (20.8 - 3.3 ms), and what 25 further
    unique tensors in 26 slots cost ((439 - 4) / 25 = 17.4 ms). Of that sum only the total is published. The split is an
    assumption: every pass over the bytes costs the same; a serialise, a ring write and a deserialise are one pass each, a socket
    is two (into the kernel and out of it), so an overflowing message at TP 4 makes 1 + 4 x 2 + 1 = 10 passes of 1.75 ms. The
    costs that do not grow with bytes are of the order that `epdsim calibrate` finds. They are no measurement of the published
    host.

    Attributes:
        fixed_ms: Paid by every plan: encoding an empty one, waking the first rank.
        per_reader_ms: Paid per rank: its doorbell, its wake-up, its header.
        per_tensor_ms: Paid per unique tensor by the sender and again by each rank: its entry in the header, its view.
        per_item_ms: Paid per placeholder, with or without data, by the sender and again by each rank: its description.
        serialise_bytes_per_ms: Copy of the data into the message; charged only when `in_band`.
        ring_copy_bytes_per_ms: Copy of the message into the ring, once for all ranks.
        socket_bytes_per_ms: Through one rank's socket, in and out; one sender feeds all ranks, so their transfers add up.
        deserialise_bytes_per_ms: Copy of the message out of the ring by one rank alone; when `in_band` also out of what a
            socket brought.
        reader_contention: What each further rank adds to the time that one alone needs for its copy and its descriptions, as a
            share: 0 when all work side by side, 1 when one after the other, for want of cores or memory bandwidth.
        chunk_bytes: A message of this size or more overflows to the sockets (PR 50606: 16 MiB unless set otherwise).
        in_band: Whether tensor data are copied into the message as a plain pickle does (vLLM up to 0.25); later releases pass
            them as buffers of their own (PR 48442).
    """

    fixed_ms: float = 0.1
    per_reader_ms: float = 0.05
    per_tensor_ms: float = 0.02
    per_item_ms: float = 0.005
    serialise_bytes_per_ms: float = _COPY_BYTES_PER_MS
    ring_copy_bytes_per_ms: float = _COPY_BYTES_PER_MS
    socket_bytes_per_ms: float = _COPY_BYTES_PER_MS / 2
    deserialise_bytes_per_ms: float = _COPY_BYTES_PER_MS
    reader_contention: float = 0.0
    chunk_bytes: int = 16 << 20
    in_band: bool = True

    def __post_init__(self) -> None:
        for name in ("fixed_ms", "per_reader_ms", "per_tensor_ms", "per_item_ms", "reader_contention"):
            non_negative(name, getattr(self, name))
        for name in ("serialise", "ring_copy", "socket", "deserialise"):
            positive(f"{name}_bytes_per_ms", getattr(self, f"{name}_bytes_per_ms"))
        if self.chunk_bytes < 1:
            raise InputError(f"chunk_bytes = {self.chunk_bytes}", "a chunk holds at least one byte")


@record
class BroadcastTime:
    """How long one broadcast takes, by part; the parts follow each other.

    Attributes:
        serialise_ms: From plan to message.
        copy_ms: Into the ring, or through the sockets.
        deliver_ms: From there until the last rank holds plan and tensors.
    """

    serialise_ms: float
    copy_ms: float
    deliver_ms: float

    @property
    def total_ms(self) -> float:
        """From the start until the last rank holds the plan."""
        return self.serialise_ms + self.copy_ms + self.deliver_ms


def broadcast_ms(load: BroadcastLoad, profile: BroadcastProfile) -> BroadcastTime:
    """How long a plan takes to reach all ranks; never less for more bytes, tensors, items or ranks (SIM-MONO).

    Crossing the chunk size changes the mechanism: two copies with the ring, sockets instead beyond. On hosts whose socket to a
    single rank beats the two copies, a message one byte over the limit is in truth quicker than one below it. The model does
    not follow that
    dip: an overflowing message costs at least what the largest message within a chunk does.
    """
    if load.readers == 0:
        return BroadcastTime(0.0, 0.0, 0.0)
    size = load.message_bytes
    describe_ms = load.num_unique_tensors * profile.per_tensor_ms + load.num_items * profile.per_item_ms
    serialise_ms = describe_ms + (size / profile.serialise_bytes_per_ms if profile.in_band else 0.0)
    slowdown = 1 + profile.reader_contention * (load.readers - 1)
    copy_ms, unpack_ms = _transport_ms(size, load.readers, slowdown, profile)
    wake_ms = profile.fixed_ms + load.readers * profile.per_reader_ms
    return BroadcastTime(serialise_ms, copy_ms, wake_ms + slowdown * describe_ms + unpack_ms)


def _transport_ms(size: int, readers: int, slowdown: float, profile: BroadcastProfile) -> tuple[float, float]:
    """Copy and unpacking of a message on the way that its size decides."""
    unpack_ms = slowdown * size / profile.deserialise_bytes_per_ms
    if size < profile.chunk_bytes:
        return size / profile.ring_copy_bytes_per_ms, unpack_ms
    if not profile.in_band:
        unpack_ms = 0.0
    least_ms = sum(_transport_ms(profile.chunk_bytes - 1, readers, slowdown, profile))
    return max(readers * size / profile.socket_bytes_per_ms, least_ms - unpack_ms), unpack_ms
