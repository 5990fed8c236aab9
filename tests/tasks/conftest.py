"""No deadline for single examples of hypothesis: a busy machine is not an error."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
