"""Signing in to the dashboard with a token, which its cookie then holds: out of reach of scripts and of other sites."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials

from harvest.server.access import COOKIE, Access, check_same_origin
from harvest.server.pages.page import Page
from harvest.server.pages.render import base_of, html

PATH = "/login"
MONTH = 30 * 86_400
LONGEST_FORM = 10_000


def session(access: Access) -> APIRouter:
    """The pages to sign in and out."""
    router = APIRouter(include_in_schema=False, route_class=Page)

    @router.get(PATH)
    async def form(request: Request, next: str = "/") -> Response:
        return html(request, "login.html", PATH, next=_inside(next), problem="")

    @router.post(PATH)
    async def sign_in(request: Request) -> Response:
        check_same_origin(request, strict=False)
        body = (await request.body())[:LONGEST_FORM].decode("utf-8", "replace")
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        secret, target = fields.get("token", "").strip(), _inside(fields.get("next", "/"))
        try:
            given = HTTPAuthorizationCredentials(scheme="Bearer", credentials=secret)
            await access.principal(request, given)
        except HTTPException as exc:
            return html(request, "login.html", PATH, code=exc.status_code, next=target, problem=str(exc.detail))
        answer = RedirectResponse(base_of(request, PATH) + target, 303)
        answer.set_cookie(
            COOKIE, secret, max_age=MONTH, httponly=True, samesite="strict", secure=access.config.secure_cookies, path="/"
        )
        return answer

    @router.post("/logout")
    async def sign_out(request: Request) -> Response:
        check_same_origin(request, strict=True)
        answer = RedirectResponse(base_of(request, "/logout") + PATH, 303)
        answer.delete_cookie(COOKIE, path="/")
        return answer

    return router


def _inside(target: str) -> str:
    """A path of the dashboard; whatever else was asked for is its first page."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "/"
    fine = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return target if fine else "/"
