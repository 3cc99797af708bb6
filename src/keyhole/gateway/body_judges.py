"""The judges of bodies of one session, one for each service that has one.

Each inspected host asks for the judge of its services (`http/host.py`). A judge stays as long as
its service does not change, because it remembers what the session may refer to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.policy.judges import make_judge

if TYPE_CHECKING:
    from keyhole.policy.body import BodyJudge
    from keyhole.policy.policy import Policy, Service


class BodyJudges:
    """The judges of one session."""

    __slots__ = ("_judges",)

    def __init__(self) -> None:
        self._judges: dict[str, tuple[Service, BodyJudge]] = {}

    def of(self, service: Service) -> BodyJudge | None:
        """The judge of a service; None where its bodies are not judged."""
        known = self._judges.get(service.name)
        if known is not None and known[0] == service:
            return known[1]
        judge = make_judge(service)
        if judge is not None:
            self._judges[service.name] = service, judge
        return judge

    def change(self, policy: Policy) -> None:
        """Forget the judges of services that another policy does not have."""
        names = {service.name for service in policy.services}
        for name in self._judges.keys() - names:
            del self._judges[name]
