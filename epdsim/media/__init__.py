"""Model families: what render produces for a picture, clip or sound."""

from epdsim.media.family import Family, RenderedMedia, families, family

__all__ = ["Family", "RenderedMedia", "families", "family"]
