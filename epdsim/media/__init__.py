"""Model families: what render produces for a picture, a clip or a sound."""
