"""Publication status of plans: which landed rows the published view shows.

A check publishes or blocks a plan. An operator can release a blocked plan or reject a published
one. The newest decision of an operator overrides all checks.
"""

from __future__ import annotations

from enum import StrEnum

NOT_CHECKED = "not checked"
"""Status of a landed plan without a decision of a check or an operator."""


class PublicationStatus(StrEnum):
    """Publication status of a plan: a check decides the first two, an operator the others."""

    PUBLISHED = "published"
    """A check found no critical failure."""
    BLOCKED = "blocked"
    """A check found a critical failure."""
    RELEASED = "released"
    """An operator published the plan despite a failed or missing check."""
    REJECTED = "rejected"
    """An operator hid the plan."""

    @property
    def is_visible(self) -> bool:
        """Whether the published view shows the rows."""
        return self in (PublicationStatus.PUBLISHED, PublicationStatus.RELEASED)


class PublishRule(StrEnum):
    """The landed records that are decoded."""

    CHECKED = "checked"
    """Records of published and released plans: the rows of the published view."""
    ALWAYS = "always"
    """All landed records, checked or not."""
