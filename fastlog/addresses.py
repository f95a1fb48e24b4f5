"""Hosts and ports as text."""

from __future__ import annotations


def bracketed(host: str) -> str:
    """The host, in brackets where it is an IPv6 address: what a port may stand behind."""
    return f"[{host}]" if ":" in host else host


def host_port(host: str, port: int) -> str:
    """``host:port`` or ``[IPv6]:port``."""
    return f"{bracketed(host)}:{port}"


def port_or_none(text: str) -> int | None:
    """The number from 0 to 65535 that a text is; None for any other text."""
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > 65535:
        return None
    return int(text)
