"""Lines of text for tests: a real access log when one is at hand, else generated ones of the same lengths."""

from __future__ import annotations

import os
import random
from functools import cache
from pathlib import Path

# Lengths at each twentieth of a real web site's access log of 10,000 lines (81 to 1,363 bytes, median 231).
LENGTHS = (81, 140, 158, 165, 169, 185, 197, 205, 212, 221, 231, 241, 251, 262, 271, 284, 293, 303, 314, 334, 444)
LONGEST = 1363
CLIENTS = 1753  # addresses in that log; a few of them made most of its requests

PATHS = ("/", "/favicon.ico", "/reset.css", "/images/jordan-80.png", "/blog/tags/puppet", "/projects/xdotool/")
AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:24.0) Gecko/20140205 Firefox/24.0",
    "Mozilla/5.0 (Windows NT 6.1; WOW64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/32.0.1700.107 Safari/537.36",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
)


@cache
def access_log_lines() -> tuple[bytes, ...]:
    """About 10,000 access-log lines: those of ``apache_access.log`` in ``FASTLOG_TEST_DATA``, else generated ones."""
    folder = os.environ.get("FASTLOG_TEST_DATA")
    path = Path(folder) / "apache_access.log" if folder else None
    if path is not None and path.is_file():
        return tuple(path.read_bytes().splitlines())
    return tuple(generated_lines(10_000))


def real_files() -> list[Path]:
    """Every text file of ``FASTLOG_TEST_DATA``; empty when that is not set."""
    folder = os.environ.get("FASTLOG_TEST_DATA")
    return sorted(path for path in Path(folder).glob("*.log") if path.is_file()) if folder else []


def generated_lines(count: int, seed: int = 7) -> list[bytes]:
    """``count`` access-log lines, the same for the same seed, whose lengths follow those of the real log."""
    source = random.Random(seed)
    clients = [".".join(str(source.randint(1, 254)) for _ in range(4)) for _ in range(CLIENTS)]
    return [_line(source, clients[int(CLIENTS * source.random() ** 3)], _length(source, i)) for i in range(count)]


def _length(source: random.Random, index: int) -> int:
    # The extremes are always there, so that a test on either end of the range does not hang on luck.
    if index % 5000 < 2:
        return LENGTHS[0] if index % 5000 else LONGEST
    if source.random() < 0.002:
        return source.randint(LENGTHS[-1], LONGEST)
    step = source.randrange(len(LENGTHS) - 1)
    return source.randint(LENGTHS[step], LENGTHS[step + 1])


def _line(source: random.Random, address: str, length: int) -> bytes:
    moment = f"{source.randint(17, 20)}/May/2015:{source.randint(0, 23):02}:{source.randint(0, 59):02}:05 +0000"
    head = f'{address} - - [{moment}] "GET {source.choice(PATHS)}'
    tail = f'" 200 {source.randint(100, 99999)} "-" "'
    agent = source.choice(AGENTS)
    room = length - len(head) - len(tail) - 1
    if room <= 0:
        return (head + tail + '"').encode()[: length - 1] + b'"'
    if room > len(agent):
        query = "".join(source.choices("abcdefghijklmnopqrstuvwxyz0123456789%+=&", k=room - len(agent)))
        return f'{head}{query}{tail}{agent}"'.encode()
    return f'{head}{tail}{agent[:room]}"'.encode()
