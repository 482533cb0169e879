"""HTTP addresses: whose they are, where a reference leads, and what of them may be shown."""

from __future__ import annotations

import warnings
from urllib.parse import urljoin, urlsplit

from kimi_inspect.errors import InvalidSourceError
from kimi_inspect.text import printable

__all__ = ["endpoint_of", "next_address", "origin", "public_url", "warn_if_open"]


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port: what a token may be sent to.

    Raises:
        ValueError: it is no address.
    """
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme, 0)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


def next_address(base: str, reference: str) -> str | None:
    """Return where a redirect or link in an answer of `base` leads; None if that is nowhere that HTTP reaches."""
    try:
        url = urljoin(base, reference)
        scheme, host, _ = origin(url)
    except ValueError:
        return None
    return url if scheme in ("http", "https") and host else None


def public_url(url: str) -> str:
    """Return `url` without what may be secret: user, password, signed query; of a broken address only the scheme."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return printable(f"{url.partition('://')[0]}://…")
    return printable(f"{parts.scheme}://{host}{parts.path}")


def endpoint_of(site: str, address: str, variable: str) -> str:
    """Return the address of a site as requests are built on it.

    Args:
        site: whose it is, for the error.
        address: as the user gave it.
        variable: the environment variable that may have given it, for the error.

    Raises:
        InvalidSourceError: it is none, or holds a password.
    """
    endpoint = address.rstrip("/")
    if next_address(endpoint, "") is None or "@" in urlsplit(endpoint).netloc:
        raise InvalidSourceError(f"{site} endpoint is no http(s) address, or holds a password; see {variable}")
    return endpoint


def warn_if_open(token: str | None, endpoint: str) -> None:
    """Warn where a token would travel in clear text."""
    parts = urlsplit(endpoint)
    if token and parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        warnings.warn(
            f"the token travels in clear text to {public_url(endpoint)}; use https", UserWarning, stacklevel=4
        )
