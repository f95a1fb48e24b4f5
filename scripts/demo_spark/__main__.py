"""``python -m scripts.demo_spark``: see ``scripts/demo-spark --help``."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.demo_command import parser_of, show
from scripts.demo_spark.pipeline import DemoOptions, run


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0, or 1 with one line on stderr."""
    parser = parser_of(
        "demo-spark",
        "Two datacenters, a mirror, an object store and Spark, under kill -9.",
        "lines to send, such as an access log; made up ones by default",
    )
    defaults = DemoOptions()
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="send for so long (%(default)g)")
    parser.add_argument("--rate", type=int, default=defaults.rate, help="lines a second of each of two (%(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="chooses what is killed when (%(default)s)")
    parser.add_argument("--page", type=Path, default=defaults.page, help="where the page goes (%(default)s)")
    chosen = parser.parse_args(arguments)
    if not chosen.seconds > 0 or chosen.rate < 1:
        parser.error("--seconds and --rate have to be above 0")
    options = DemoOptions(chosen.file, chosen.seconds, chosen.rate, chosen.seed, chosen.page.absolute())
    return show("demo-spark", lambda directory, say: run(options, directory, say))


if __name__ == "__main__":
    sys.exit(main())
