"""Who may ask: the token's holder, by a name of this machine, from our own pages; and what pages may do."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_READS = ("GET", "HEAD")
_REFUSED = "This address needs the token. Open the address that iotrace ui printed.\n"


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches `host`."""
    return host in LOOPBACK


class Guard:
    """Answers for the application where a request has no business here, and adds headers to what it says."""

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self._app, self._token = app, token.encode()
        self._everywhere = not is_loopback(host)
        self._names = {*LOOPBACK, host.lower()}
        if self._everywhere:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", _POLICY)
                headers.setdefault("Cache-Control", "no-store")
                headers["X-Content-Type-Options"] = "nosniff"
                headers["X-Frame-Options"] = "DENY"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_ours(headers.getlist("host")):
            return _said("This server does not answer to that name.\n", HTTPStatus.FORBIDDEN)
        origins = headers.getlist("origin")
        own = f"http://{headers['host']}".lower()
        if any(origin.lower() != own for origin in origins):
            return _said("Another site's page asked for this.\n", HTTPStatus.FORBIDDEN)
        if scope["method"] not in _READS and not origins:
            return _said("A page of this server has to ask for this.\n", HTTPStatus.FORBIDDEN)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if scope["method"] in _READS and self._holds(given):
            return self._admitted(scope, headers, [pair for pair in query if pair[0] != "token"])
        cookies = [cookie_parser(each).get(self._cookie(scope), "") for each in headers.getlist("cookie")]
        bearers = [each.removeprefix("Bearer ") for each in headers.getlist("authorization")]
        return None if self._holds([*cookies, *bearers]) else _said(_REFUSED, HTTPStatus.UNAUTHORIZED)

    def _is_ours(self, hosts: list[str]) -> bool:
        """A page elsewhere can make its own name lead here: such a name is not answered."""
        if len(hosts) != 1:
            return False
        try:
            name = (urlsplit(f"//{hosts[0]}").hostname or "").lower()
        except ValueError:
            return False
        return name in self._names or (self._everywhere and _is_address(name))

    def _holds(self, tokens: Iterable[str]) -> bool:
        return any(secrets.compare_digest(each.encode(), self._token) for each in tokens)

    def _admitted(self, scope: Scope, headers: Headers, rest: list[tuple[str, str]]) -> Response:
        """The token goes from the address into a cookie, which scripts cannot read."""
        path = "/" + scope["path"].lstrip("/\\")  # //host would be another server
        answer = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), HTTPStatus.SEE_OTHER)
        answer.set_cookie(self._cookie(scope), self._token.decode(), httponly=True, samesite="lax")
        return answer

    def _cookie(self, scope: Scope) -> str:
        """Cookies know no ports: each server has a name of its own."""
        return f"iotrace-ui-{scope['server'][1] if scope.get('server') else 0}"


def _said(text: str, status: HTTPStatus) -> Response:
    return PlainTextResponse(text, status)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
