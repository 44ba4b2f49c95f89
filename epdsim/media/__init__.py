"""Model families: what render produces for a picture, clip or sound."""

from epdsim.media.family import Family, RenderedMedia, families, family, family_in

__all__ = ["Family", "RenderedMedia", "families", "family", "family_in"]
