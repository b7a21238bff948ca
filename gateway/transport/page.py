"""The web client of this repository as files: where they lie, which of them answers for a folder, and the headers that fence it in.

A page is mounted at several places (`/` unless another client has it, `/app/`, `/status/`), each with the whole folder, so that every
address in it is relative and a proxy may put a prefix before all of them. Nothing of it is a secret: it is open to strangers, as the files
of other clients are. The one rule: what our page may load and whom it may talk to is said here, in one policy; a client of others under
`--static` gets none of it, for it was not written for it. Thread: loop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aiohttp import web

# Scripts, styles and pictures of this server alone, none of them inline; sockets to wherever the page was told, which is this server.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "media-src 'self' blob:",
        "worker-src 'self'",
        "connect-src 'self' ws: wss:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # asked for anew, answered by 304: a page and modules of two versions do not meet
}


class PageFiles(web.StaticResource):
    """One mount of the folder."""

    def __init__(
        self, prefix: str, folder: Path, *, index: str = "index.html", refusal: Callable[[web.Request], str | None] | None = None
    ) -> None:
        """Mount at `prefix`, which has no slash at its end ("" is the root).

        Args:
            index: file that answers for the folder itself.
            refusal: says why a request is refused, or None; without it nobody is.
        """
        super().__init__(prefix, folder)
        self._folder = folder.resolve()
        self._index = index
        self._refusal = refusal
        self._to_folder = web.ResourceRoute("GET", self._redirect, self)
        self._to_refusal = web.ResourceRoute("GET", self._refuse, self)

    async def resolve(self, request: web.Request) -> tuple[web.UrlMappingMatchInfo | None, set[str]]:
        """Find the route of a request, as every resource does."""
        match, methods = await super().resolve(request)
        if match is None or not self._has(match["filename"]):
            return None, set()  # a path that is nobody's is refused as everywhere else, for want of a key first
        if self._refusal is not None and self._refusal(request) is not None:
            return web.UrlMappingMatchInfo({}, self._to_refusal), methods
        if not match["filename"]:
            if not request.path.endswith("/"):
                return web.UrlMappingMatchInfo({}, self._to_folder), methods
            match["filename"] = self._index
        return match, methods

    def _has(self, name: str) -> bool:
        """Whether the folder itself, or a file in it, is asked for."""
        path = (self._folder / name).resolve()
        return path.is_relative_to(self._folder) and (not name or path.is_file())

    async def _redirect(self, request: web.Request) -> web.StreamResponse:
        """Add the slash, without which the page would look for its files in the folder above; relative, for there may be a prefix."""
        raise web.HTTPMovedPermanently(f"{request.path.rpartition('/')[2]}/")

    async def _refuse(self, request: web.Request) -> web.StreamResponse:
        assert self._refusal is not None  # or the route would not have been chosen
        raise web.HTTPForbidden(text=self._refusal(request))


def index_of(folder: Path) -> web.FileResponse:
    """The page itself, where another route than a mount answers for it."""
    return web.FileResponse(folder / "index.html", headers=HEADERS)


async def fence(request: web.Request, response: web.StreamResponse) -> None:
    """Sign what comes from a mount of ours; a signal of the application, before a response begins."""
    if isinstance(request.match_info.route.resource, PageFiles):
        response.headers.update(HEADERS)
