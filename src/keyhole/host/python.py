"""The preset `python`: the indexes of pip and uv on this host.

Called through `presets`. It grants what the host's own settings name, and pip's built-in index with
the host of its files if that is in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.host import pip, uv
from keyhole.host.netrc import login_for, user_logins
from keyhole.host.package_indexes import PackageIndex, PackageIndexes
from keyhole.host.preset_draft import PresetDraft

if TYPE_CHECKING:
    from keyhole.host.fetch_location import FetchLocation
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.preset import Preset

ADVICE = (
    "no pip on this host says which index it uses; set index-url in pip.conf, "
    "or name your index under [egress] allow"
)


def learn(surroundings: HostEnvironment) -> Preset:
    """The hosts that pip and uv fetch from on this host."""
    return _Learner(surroundings).learn()


class _Learner:
    def __init__(self, surroundings: HostEnvironment) -> None:
        self.draft = PresetDraft("python", surroundings)
        self.builtin = pip.builtin(surroundings)
        self.logins = user_logins(self.draft)

    def learn(self) -> Preset:
        of_pip = pip.indexes(self.draft)
        of_uv = uv.indexes(self.draft)
        env = self._place_pip(of_pip)
        # uv with no settings of its own would ask its built-in index, which need not be granted.
        env += self._place_uv(of_pip if of_uv == PackageIndexes() else of_uv)
        return self.draft.finish(ADVICE, env=env)

    def _place_pip(self, found: PackageIndexes) -> list[tuple[str, str]]:
        main = self._place_main(found)
        extra = self._place(found.extra)
        # A directory of wheels is no host; [sandbox] readable decides whether the sandbox sees it.
        links = self._place(tuple(link for link in found.links if "://" in link.url))
        return [
            *_variable("PIP_INDEX_URL", main),
            *_variable("PIP_EXTRA_INDEX_URL", extra),
            *_variable("PIP_FIND_LINKS", links),
        ]

    def _place_uv(self, found: PackageIndexes) -> list[tuple[str, str]]:
        main = self._place_main(found)
        extra = self._place(found.extra)
        return [*_variable("UV_DEFAULT_INDEX", main), *_variable("UV_INDEX", extra)]

    def _place_main(self, found: PackageIndexes) -> list[str]:
        """The main index's URL for use inside; nothing if the built-in one is in use."""
        if found.main is not None:
            return self._place((found.main,))
        if self.builtin is None:
            self.draft.note(ADVICE)
        else:
            self._place((PackageIndex(self.builtin.index, "pip's built-in default"),))
        return []

    def _place(self, found: tuple[PackageIndex, ...]) -> list[str]:
        urls = []
        for index in found:
            at = self.draft.locate(index.url, index.where)
            if at is None:
                continue
            self._grant(at, index)
            urls.append(f"{index.name}={at.url}" if index.name else at.url)
        return urls

    def _grant(self, at: FetchLocation, index: PackageIndex) -> None:
        # Simple pages are at …/simple, files beside them: /packages, /files, /+f, …
        self.draft.grant(
            at,
            index.where,
            scope=at.segments[:-1],
            credential=at.credential
            or uv.credential(self.draft.surroundings, index)
            or login_for(at, self.logins),
        )
        default = self.builtin and self.draft.locate(self.builtin.index, "pip's built-in default")
        if self.builtin and default and default.pattern == at.pattern:
            files = self.draft.locate(f"https://{self.builtin.files}/", "pip's built-in default")
            if files:
                self.draft.grant(files, index.where)
        else:
            self.draft.note(
                f"{at.pattern} may keep its files on another host; if downloads are denied, "
                "name that host under [egress] allow"
            )


def _variable(name: str, values: list[str]) -> list[tuple[str, str]]:
    return [(name, " ".join(values))] if values else []
