"""The rules, pure and deterministic.

What lives here takes no clock and no random numbers and imports nothing but the standard library; every choice that reality leaves
open is an argument. See ARCHITECTURE.md for the way of one request through these modules.
"""
