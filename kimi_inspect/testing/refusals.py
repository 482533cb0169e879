"""How the Hub says no: status, code and message of each case, word for word."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kimi_inspect.testing.wire import Answer, Headers, Request, bytes_body

__all__ = ["REFUSALS", "Case", "Refusal", "refuse"]

Case = Literal[
    "repo-missing-anonymous",
    "repo-missing",
    "bad-token",
    "gated-anonymous",
    "gated-unapproved",
    "revision-missing",
    "entry-missing",
    "disabled",
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One case: `code` is the X-Error-Code, None where the Hub sends none; `message` may name the repo and the rev."""

    status: int
    code: str | None
    message: str


REFUSALS: Mapping[Case, Refusal] = {
    # To a stranger a private repository and a missing one look the same.
    "repo-missing-anonymous": Refusal(401, None, "Invalid username or password."),
    "repo-missing": Refusal(404, "RepoNotFound", "Repository not found"),
    "bad-token": Refusal(401, None, "Invalid credentials in Authorization header"),
    "gated-anonymous": Refusal(
        401,
        "GatedRepo",
        "Access to model {repo} is restricted. You must have access to it and be authenticated to access it."
        " Please log in.",
    ),
    "gated-unapproved": Refusal(
        403,
        "GatedRepo",
        "Access to model {repo} is restricted and you are not in the authorized list."
        " Visit https://huggingface.co/{repo} to ask for access.",
    ),
    "revision-missing": Refusal(404, "RevisionNotFound", "Invalid rev id: {rev}"),
    "entry-missing": Refusal(404, "EntryNotFound", "Entry not found"),
    # There is no code for it: clients know it by this very sentence.
    "disabled": Refusal(403, None, "Access to this resource is disabled."),
}


def refuse(case: Case, request: Request, *, repo: str = "", rev: str = "", headers: Headers = ()) -> Answer:
    """Return the refusal of `case`; under /api its body is JSON, elsewhere plain text."""
    refusal = REFUSALS[case]
    message = refusal.message.format(repo=repo, rev=rev)
    extra: list[tuple[str, str]] = [*headers, ("X-Error-Message", message)]
    if refusal.code:
        extra.append(("X-Error-Code", refusal.code))
    if refusal.status == 401:
        extra.append(("WWW-Authenticate", 'Bearer realm="Authentication required", charset="UTF-8"'))
    if request.path.startswith("/api/"):
        body = json.dumps({"error": message}).encode()
        return Answer(refusal.status, (*extra, ("Content-Type", "application/json; charset=utf-8")), bytes_body(body))
    return Answer(refusal.status, (*extra, ("Content-Type", "text/plain; charset=utf-8")), bytes_body(message.encode()))
