"""Admission to the console: without a login there is nothing, not even a style sheet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.support.consoles import (
    BEARER,
    Admits,
    SomeRights,
    app_of,
    console_of,
    guarded_console,
)
from tests.support.file_lake import home_lake
from tidemark.console.guard import COOKIE, LinkGuard, Viewer
from tidemark.console.server import _frame, build_app

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
WITHOUT_ROUTE = (
    "/nothing",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/static/../guard.py",
    "//",
    "/login",
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a pipeline."""
    home_lake(tmp_path)
    return tmp_path


def paths(routes: list[BaseRoute]) -> Iterator[str]:
    """Yield a path of each route and of each mounted application."""
    for route in routes:
        assert isinstance(route, Route | Mount), route
        path = route.path
        for name in getattr(route, "param_convertors", {}):
            path = path.replace(f"{{{name}}}", "1")
        yield path
        if isinstance(route, Mount):
            yield from (f"{path}{inner}" for inner in paths(list(route.routes)))


def test_no_path_answers_without_a_login(home: Path) -> None:
    client, _ = guarded_console(home)
    web = build_app(app_of(home), LinkGuard())
    known = list(paths(web.routes))
    assert len(known) >= 7
    for path in (*known, *WITHOUT_ROUTE):
        for method in METHODS:
            response = client.request(method, path)
            assert response.status_code in (401, 403), (method, path)
            assert "events" not in response.text
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/"):
        pass


def test_the_link_logs_in_one_browser_once(home: Path) -> None:
    client, guard = guarded_console(home)
    assert client.get("/login?token=wrong").status_code == 403
    link = f"/login?token={guard.link_token}"
    for method in ("HEAD", "POST", "OPTIONS"):
        assert client.request(method, link).status_code == 403
    login = client.get(link)
    assert (login.status_code, login.headers["location"]) == (303, "/")
    cookie = login.headers["set-cookie"].lower().split("; ")
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie)
    assert guard.link_token == ""
    assert client.get("/").status_code == 200
    client.cookies.clear()
    assert client.get(link).status_code == 403
    assert client.get("/login?token=").status_code == 403
    assert client.get("/", headers={"Cookie": f"{COOKIE}="}).status_code == 401


def test_a_refusal_is_a_page_with_a_title_and_the_command(home: Path) -> None:
    client, _ = guarded_console(home)
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "<title>Not logged in · Tidemark</title>" in answer.text
    assert "Open the link that <code>tidemark console</code> printed." in answer.text
    assert "<title>Not permitted · Tidemark</title>" in client.get("/login?token=wrong").text


def test_two_consoles_of_a_machine_keep_their_logins(home: Path) -> None:
    """A browser sends the cookies of 127.0.0.1 to all its ports."""
    cookies, clients = {}, []
    for name in ("tidemark_console_8081", "tidemark_console_9000"):
        guard = LinkGuard(cookie=name)
        client = TestClient(build_app(app_of(home), guard), follow_redirects=False)
        login = client.get(f"/login?token={guard.link_token}")
        name, _, value = login.headers["set-cookie"].partition(";")[0].partition("=")
        cookies[name] = value
        client.cookies.clear()
        clients.append(client)
    both = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    assert [client.get("/", headers=both).status_code for client in clients] == [200, 200]


def test_a_program_logs_in_with_the_bearer_token_only(home: Path) -> None:
    client, _ = guarded_console(home)
    good = {"Authorization": f"Bearer {BEARER}"}
    assert client.get("/health", headers=good).json()["status"] == "ok"
    assert client.get("/metrics", headers=good).status_code == 200
    for wrong in ("Bearer ", "Bearer x", f"Basic {BEARER}", BEARER, f"Bearer {BEARER}x"):
        assert client.get("/health", headers={"Authorization": wrong}).status_code == 401
    without = TestClient(build_app(app_of(home), LinkGuard(bearer=None)))
    assert without.get("/health", headers={"Authorization": "Bearer None"}).status_code == 401


def test_the_bearer_token_opens_metrics_and_health_only(home: Path) -> None:
    """Prometheus keeps the token in a file, so it must not open records."""
    client, _ = guarded_console(home)
    good = {"Authorization": f"Bearer {BEARER}"}
    web = build_app(app_of(home), LinkGuard())
    others = {*paths(web.routes), "/pipelines/events/records?offset=9", "/metrics/", "//metrics"}
    for path in (*(others - {"/metrics", "/health"}), "/nothing"):
        assert client.get(path, headers=good).status_code == 403, path


def test_an_error_of_the_guard_refuses_the_request(home: Path) -> None:
    class Broken:
        async def admit(self, request: Request) -> Viewer | Response:  # noqa: ARG002
            raise RuntimeError("secret of the guard")

    response = TestClient(build_app(app_of(home), Broken())).get("/")
    assert response.status_code == 403
    assert "secret" not in response.text


def test_a_foreign_host_name_is_refused(home: Path) -> None:
    """A page of that site would read the console through the browser of the user."""
    client, _ = guarded_console(home)
    good = {"Authorization": f"Bearer {BEARER}"}
    assert client.get("/metrics", headers=good).status_code == 200
    assert client.get("/metrics", headers={**good, "Host": "attacker.example"}).status_code == 400


def test_other_methods_than_get_are_refused_with_the_reason(home: Path) -> None:
    answer = console_of(home).post("/")
    assert answer.status_code == 405
    assert "The console answers GET requests only." in answer.text
    assert "Invalid request" in answer.text


def test_a_viewer_sees_only_permitted_pipelines(home: Path) -> None:
    client = console_of(home, viewer=SomeRights(pipelines=("idle",)))
    shown = client.get("/").text
    assert "idle" in shown
    assert "events" not in shown


def test_every_page_of_a_hidden_pipeline_is_like_one_of_an_unknown_pipeline(home: Path) -> None:
    client = console_of(home, viewer=SomeRights(pipelines=("idle",)))
    web = build_app(app_of(home), Admits(SomeRights()))
    pages = [each.path for each in web.routes if isinstance(each, Route) and "{name}" in each.path]
    assert len(pages) > 8
    for page in pages:
        page = page.replace("{sequence}", "1").replace("{path:path}", "index.html")
        hidden, unknown = (
            client.get(page.replace("{name}", name)) for name in ("events", "unknown")
        )
        assert hidden.status_code == 404, page
        assert hidden.text.replace("events", "unknown") == unknown.text, page


def test_an_invalid_spec_is_shown_only_to_viewers_of_all_pipelines(home: Path) -> None:
    (home / "pipelines" / "broken.yaml").write_text("name: broken\n")
    assert "broken" in console_of(home).get("/").text
    some = console_of(home, viewer=SomeRights(("idle", "events")))
    assert "broken" not in some.get("/").text
    assert some.get("/pipelines/broken").status_code == 404


def test_no_route_changes_anything(home: Path) -> None:
    web = build_app(app_of(home), Admits(SomeRights()))
    for route in web.routes:
        assert isinstance(route, Route)
        assert route.methods is not None
        assert route.methods <= {"GET", "HEAD"}


@pytest.mark.parametrize("path", ["/", "/nothing", "/pipelines/events?partition=x", "/login"])
def test_every_response_has_the_security_headers(home: Path, path: str) -> None:
    for client in (console_of(home), guarded_console(home)[0]):
        headers = client.get(path).headers
        directives = (part.split() for part in headers["content-security-policy"].split(";"))
        policy = {name: sources for name, *sources in directives}
        assert policy.pop("default-src") == policy.pop("base-uri") == ["'none'"]
        assert {tuple(sources) for sources in policy.values()} == {("'self'",)}
        assert {"script-src", "frame-ancestors", "form-action", "connect-src"} <= policy.keys()
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"


def test_htmx_runs_no_code_of_a_page_and_requests_this_console_only(home: Path) -> None:
    page = console_of(home).get("/").text
    (config,) = re.findall(r"<meta name=\"htmx-config\" content='([^']+)'>", page)
    wanted = {"allowEval": False, "selfRequestsOnly": True, "allowScriptTags": False}
    assert json.loads(config) | wanted == json.loads(config)


def test_an_unexpected_error_is_a_page_with_the_security_headers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("bug")

    monkeypatch.setattr("tidemark.console.home.Home.plans", lambda *_: fail(None))
    response = console_of(home).get("/pipelines/events/plans")
    assert (response.status_code, "ZeroDivisionError" in response.text) == (500, True)
    assert "bug" not in response.text
    assert response.headers["content-security-policy"]


def test_a_cluster_without_the_right_is_like_an_unknown_one(home: Path) -> None:
    client = console_of(home, viewer=SomeRights(payloads=False))
    known = client.get("/cluster/kafka_default/topics/events")
    unknown = client.get("/cluster/other/topics/events")
    assert (known.status_code, known.text) == (404, unknown.text)


def test_a_proxy_may_keep_its_prefix(home: Path) -> None:
    guard = LinkGuard()
    client = TestClient(build_app(app_of(home), guard, prefix="/data"), follow_redirects=False)
    assert client.get("/data/").status_code == 401
    login = client.get(f"/data/login?token={guard.link_token}")
    assert (login.status_code, login.headers["location"]) == (303, "/data/")
    assert "path=/data;" in login.headers["set-cookie"].lower()
    page = client.get("/data/pipelines/events")
    assert page.status_code == 200
    assert 'href="/data/pipelines/events/plans"' in page.text
    assert 'hx-get="/data/pipelines/events?' in page.text


def test_a_refresh_never_leaves_the_console(home: Path) -> None:
    """A browser reads a backslash as a slash, so a path with one has no page."""
    client = console_of(home)
    assert client.get("/dags/..%5C..%5Capi").status_code == 404
    request = Request({**_SCOPE, "path": "/dags/..\\..\\api", "query_string": b""})
    assert _frame(request)["here"] == "/dags/..%5C..%5Capi?"


_SCOPE = {"type": "http", "method": "GET", "headers": [], "server": ("testserver", 80)}
