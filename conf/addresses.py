"""Addresses of HTTP servers, as users give them: of a judge, of vLLM."""

import urllib.parse


def names_http_server(url: str) -> bool:
    """Whether a URL has what is needed to reach an HTTP server: a host, and a port that can be, if any."""
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, or a bracket left open
        return False
