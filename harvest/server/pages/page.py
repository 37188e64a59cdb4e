"""Routes that answer with pages, also where something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as StarletteHTTPException

from harvest.errors import HarvestError
from harvest.server import problems
from harvest.server.access import COOKIE
from harvest.server.pages.render import base_of, html

log = logging.getLogger("harvest.server")


class Page(APIRoute):
    """Whoever is not let in is sent to the sign-in, where there is one."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handle, path = super().get_route_handler(), self.path

        async def answer(request: Request) -> Response:
            try:
                response: Response = await handle(request)
                return response
            except StarletteHTTPException as exc:
                return _refused(request, path, exc)
            except RequestValidationError:
                body = problems.problem(422, "RequestInvalid", "this address does not make sense here")
            except HarvestError as exc:
                body = problems.body_of(exc)
            except Exception as exc:
                log.error("a page failed: %s", type(exc).__name__, exc_info=exc)
                body = problems.problem(500, "InternalError", "this is a fault of Harvest; its log has the details")
            return html(request, "problem.html", path, code=body["status"], problem=body)

        return answer


def _refused(request: Request, path: str, exc: StarletteHTTPException) -> Response:
    if exc.status_code == 401 and getattr(request.app.state, "harvest_login", False):
        target = path + (f"?{request.url.query}" if request.url.query else "")
        answer = RedirectResponse(f"{base_of(request, path)}/login?next={quote(target)}", 303)
        if COOKIE in request.cookies:  # it is good for nothing any more
            answer.delete_cookie(COOKIE, path="/")
        return answer
    page = html(request, "problem.html", path, code=exc.status_code, problem=problems.named(exc))
    page.headers.update(exc.headers or {})  # where to go, or how to sign in
    return page
