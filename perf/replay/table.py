"""Every scenario of the replay with its goal and the published figure, where there is one.

Sources: the paper (Kreps, Narkhede, Rao: Kafka, NetDB 2011, section 5): 50,000 messages of 200 bytes a second at
batch 1, 400,000 at batch 50, 22,000 consumed in fetches of about 200 kB. The 0.7 site's performance page: its charts
are in MB/s of 200-byte messages, read by eye to 2 %; they stand here as messages a second (1 MB/s is 5,000).
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from typing import Any

from perf.figures.results import CEILING, OURS, Goal
from perf.replay.batch_table import of_batches
from perf.replay.scenarios import (
    BROKER_ALONE,
    ENTRY_OVERHEAD,
    PEERS,
    CodecAlone,
    Consume,
    FanOut,
    Figure,
    InSpark,
    Latency,
    Memory,
    Mirrored,
    OfBatches,
    Produce,
    Recovery,
    Scenario,
    Stored,
    Tail,
)
from perf.replay.spark_table import in_spark
from perf.replay.stage import ENTRY_BYTES, Options
from perf.replay.sweep_table import sweep

EVERYONE = (OURS, CEILING, BROKER_ALONE, PEERS)
SITE_MB = 5000.0
"""Messages of 200 bytes in one MB, as the site's charts count."""

BATCH = 50
CURVE_ROUNDS = 3
CURVE_SHARE = 0.2
GROUP_SHARE = 0.8
TAIL_RATE = 2.0e6
MAX_PSS_BYTES = 40_000_000
GB = 1_000_000_000


def scenarios(options: Options) -> tuple[Scenario, ...]:
    """All of them, in the order in which they take turns."""
    return tuple(
        [
            *_producers(),
            *_codecs(),
            *_consumers(),
            *_latency(options),
            *_curves(),
            *of_batches(),
            *in_spark(),
            *_storage(options),
            *sweep(options),
        ]
    )


def selected(found: tuple[Scenario, ...], patterns: tuple[str, ...]) -> tuple[Scenario, ...]:
    """Those of which a figure's name, or the block, fits one of the patterns; all of them without patterns."""
    if not patterns:
        return found

    def fits(scenario: Scenario) -> bool:
        names = (scenario.block, *(figure.name for figure in scenario.figures))
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    return tuple(scenario for scenario in found if fits(scenario))


def _only(
    section: str, name: str, title: str, goal: Goal | None = None, paper: float | None = None
) -> tuple[Figure, ...]:
    return (Figure(name=name, title=title, section=section, goal=goal, paper=paper),)


def _producers() -> Iterator[Scenario]:
    figures = partial(_only, "producer")
    yield Produce(
        figures=figures(
            "produce-send-50", "Producer, batch 50, send() per message", Goal(value=4.0e6, ceiling_ratio=0.45), 400_000
        ),
        block="producer",
        systems=(OURS, CEILING),
        how="send",
    )
    yield Produce(
        figures=figures(
            "produce-list-50", "Producer, batch 50, lists of messages", Goal(value=5.5e6, ceiling_ratio=0.6), 400_000
        ),
        block="producer",
        systems=EVERYONE,
    )
    yield Produce(
        figures=figures("produce-send-1", "Producer, batch 1, pipelined", Goal(value=2.5e6), 50_000),
        block="producer",
        systems=(OURS, CEILING, BROKER_ALONE),
        how="send",
        batch=1,
    )
    for acks, ratio in (("appended", 0.8), ("flushed", 0.5)):
        yield Produce(
            figures=figures(
                f"produce-send-50-{acks}",
                f"Producer, batch 50, acknowledged when {acks}",
                Goal(of="produce-send-50", of_ratio=ratio),
            ),
            block="producer",
            how="send",
            acks=acks,
        )
    yield Tail(
        figures=(
            Figure(
                name="tail",
                title="Producing and consuming at once, batch 50",
                section="producer",
                goal=Goal(value=TAIL_RATE),
            ),
            _lag("tail-full-lag", "p99.9 of the lag behind a producer as fast as it can, from when a batch was made"),
        ),
        block="producer",
    )
    yield Tail(
        figures=(
            Figure(
                name="tail-paced",
                title="Producing at 2.2 million/s and consuming at once, batch 50",
                section="producer",
                goal=Goal(value=TAIL_RATE),
            ),
            _lag("tail-lag", "p99.9 of the lag at 2.2 million/s, from the intended send", Goal(value=50)),
        ),
        block="producer",
        rate=1.1 * TAIL_RATE,
    )


def _lag(name: str, title: str, goal: Goal | None = None) -> Figure:
    return Figure(name=name, title=title, section="latency", takes="lag_p99_9_ms", unit="ms", better="lower", goal=goal)


def _codecs() -> Iterator[Scenario]:
    """Both sides of a ratio take turns, so they are one block."""
    for codec in ("gzip", "snappy"):
        alone = f"codec-{codec}"
        yield CodecAlone(
            figures=(Figure(name=alone, title=f"{codec} alone, sets of 50 log lines", section="producer"),),
            block="producer",
            compression=codec,
            share=0.05,
        )
        goal = Goal(of=alone, of_ratio=0.8)
        yield Produce(
            figures=_only("producer", f"produce-{codec}-50", f"Producer, {codec} sets of 50 log lines", goal),
            block="producer",
            how="list",
            acks="appended",
            compression=codec,
            lines=True,
            share=0.05,
        )


def _consumers() -> Iterator[Scenario]:
    figures = partial(_only, "consumer")
    lists = Goal(value=14e6, ceiling_ratio=0.5)
    yield Consume(
        figures=figures("consume-paper", "Consumer, payloads one by one, fetches of 200 kB", paper=22_000),
        block="consumer",
        systems=EVERYONE,
        mode="payloads",
        fetch_bytes=200_000,
    )
    yield Consume(
        figures=figures("consume-payloads", "Consumer, payloads one by one", Goal(value=8e6)),
        block="consumer",
        mode="payloads",
    )
    yield Consume(
        figures=figures("consume-lists", "Consumer, lists of payloads", lists),
        block="consumer",
        systems=(OURS, CEILING, BROKER_ALONE),
    )
    for mode, title in (("numpy", "numpy arrays"), ("arrow", "Arrow record batches")):
        yield Consume(
            figures=figures(f"consume-{mode}", f"Consumer, {title}", lists if mode == "numpy" else None),
            block="consumer",
            systems=(OURS, CEILING) if mode == "numpy" else (OURS,),
            mode=mode,
        )
    yield Consume(
        figures=figures("consume-files", "Consumer reading the broker's files, numpy arrays", Goal(value=25e6)),
        block="consumer",
        mode="numpy",
        local=True,
    )
    for mode in ("payloads", "lists"):
        yield Consume(
            figures=figures(
                f"group-{mode}", f"One member of a group, {mode}", Goal(of=f"consume-{mode}", of_ratio=GROUP_SHARE)
            ),
            block="consumer",
            mode=mode,
            group=True,
        )
    yield Mirrored(
        figures=figures(
            "mirror", "Mirror of one topic into another cluster", Goal(of="consume-payloads", of_ratio=0.5)
        ),
        block="consumer",
    )
    for consumers in (1, 4, 16):
        yield _fan_out(consumers)


def _fan_out(consumers: int) -> Scenario:
    who = f"{consumers} consumer" + ("s" if consumers > 1 else "")
    name = f"fan-out-{consumers}"
    of_one = Goal(of="fan-out-1", of_ratio=1.0) if consumers > 1 else None
    meanwhile = Goal(of=f"{name}-produce-alone", of_ratio=0.5) if consumers > 1 else None
    title = "Producer, batch 50, "
    return FanOut(
        figures=(
            Figure(name=name, title=f"{who} of one topic at once, total", section="consumer", goal=of_one),
            Figure(
                name=f"{name}-produce",
                title=f"{title}while {who} read",
                section="producer",
                takes="produce_rate",
                goal=meanwhile,
            ),
            Figure(
                name=f"{name}-produce-alone",
                title=f"{title}just before {who} read",
                section="producer",
                takes="produce_alone_rate",
            ),
        ),
        block="consumer",
        most_rounds=CURVE_ROUNDS if consumers > 4 else None,
        consumers=consumers,
    )


def _latency(options: Options) -> Iterator[Scenario]:
    for rate, (acks, policy, goal) in product(
        (1_000, 10_000), (("appended", "flush on demand", 8.0), ("flushed", "acknowledged when flushed", 2.0))
    ):
        name = f"latency-{rate}-{'default' if acks == 'appended' else acks}"
        title = f"p99 from intended send to consumed, {rate:,}/s, {policy}"
        yield Latency(
            figures=(
                Figure(
                    name=name,
                    title=title,
                    section="latency",
                    takes="p99_ms",
                    unit="ms",
                    better="lower",
                    x=rate,
                    x_title="messages/s",
                ),
                Figure(
                    name=f"{name}-beside-disk",
                    title=f"{title}, less twice the p99 of fdatasync",
                    section="latency",
                    takes="beside_disk_ms",
                    unit="ms",
                    better="lower",
                    goal=Goal(value=goal) if rate == 10_000 else None,
                ),
            ),
            block="latency",
            settings={},
            rate=rate,
            acks=acks,
            seconds=options.seconds,
        )


def _curve(curve: str, point: int, title: str, x_title: str, paper_mb: float | None = None, **more: Any) -> Figure:
    name = f"{curve}-{point}"
    paper = None if paper_mb is None else paper_mb * SITE_MB
    return Figure(
        name=name,
        title=title,
        section=f"curve:{curve}",
        x=point,
        x_title=x_title,
        paper=paper,
        **more,
    )


def _curves() -> Iterator[Scenario]:
    def produce(figure: Figure, **fields: Any) -> Produce:
        given: dict[str, Any] = {"share": CURVE_SHARE, **fields}
        return Produce(figures=(figure,), block="curves", most_rounds=CURVE_ROUNDS, **given)

    for batch, paper in {1: 17.5, 10: None, 50: 51.0, 100: 47.0, 150: 62.0, 200: None}.items():
        yield produce(_curve("batch", batch, f"Producer, batch {batch}", "messages in a batch", paper), batch=batch)
    for size in (20, 200, 2_000, 20_000):
        share = CURVE_SHARE * min(1.0, 200 / size)
        figure = _curve(
            "message-size", size, f"Producer, {size:,} bytes", "bytes of a message", takes="mb_per_second", unit="MB/s"
        )
        yield produce(figure, message_bytes=size, share=share)
    for producers, paper in {1: 52.0, 2: None, 4: None, 10: 42.0, 20: 43.0}.items():
        title = f"{producers} producer{'s' if producers > 1 else ''}, batch 200"
        yield produce(_curve("producers", producers, title, "producers", paper), threads=producers, batch=200)
    for topics, paper in {1: 43.5, 10: 41.5, 50: 35.5, 100: None}.items():
        goal = Goal(of="topics-1", of_ratio=0.7) if topics == 100 else None
        partitions = 1 if topics == 1 else 4
        title = f"{topics} topics × {partitions} partitions, 4 producers" if topics > 1 else "1 topic, 4 producers"
        figure = _curve("topics", topics, title, "topics", paper, goal=goal)
        yield produce(figure, topics=topics, partitions=partitions, threads=4, how="rotate")
    for consumers, paper in {1: None, 2: None, 4: None, 10: 91.0, 20: 112.0}.items():
        title = f"{consumers} consumer{'s' if consumers > 1 else ''}, total"
        yield Consume(
            figures=(_curve("consumers", consumers, title, "consumers", paper),),
            block="curves",
            most_rounds=CURVE_ROUNDS,
            share=CURVE_SHARE,
            consumers=consumers,
        )


def _storage(options: Options) -> Iterator[Scenario]:
    whole = options.segment_bytes >= GB * 95 // 100
    size = f"{options.segment_bytes / GB:g} GB"
    start = partial(Figure, section="recovery", unit="s", better="lower")
    goal = Goal(value=0.5) if whole else None
    title = f"Start after kill -9, one segment of {size}, no checkpoint"
    killed = {
        False: (
            start(name="recovery", title=title, takes="seconds", goal=goal),
            start(name="recovery-per-gb", title="Recovery alone, for each GB", takes="seconds_per_gb"),
        ),
        True: (start(name="recovery-in-doubt", title=f"{title}, killed in a flush", takes="seconds"),),
    }
    for in_flush, figures in killed.items():
        yield Recovery(
            figures=figures,
            block="storage",
            most_rounds=CURVE_ROUNDS,
            segment_bytes=options.segment_bytes,
            in_flush=in_flush,
        )
    for name, share in (("small", 0.01), ("large", 1.0)):
        yield Memory(
            figures=(
                Figure(
                    name=f"memory-{name}",
                    title=f"Broker's largest process (PSS), {name} backlog",
                    section="memory",
                    takes="largest_bytes",
                    unit="bytes",
                    better="lower",
                    goal=Goal(value=MAX_PSS_BYTES),
                ),
            ),
            block="storage",
            most_rounds=CURVE_ROUNDS,
            share=share,
            backlog_bytes=int(share * options.messages) * ENTRY_BYTES,
        )
    x = options.stored_bytes / GB
    yield Stored(
        figures=(
            Figure(
                name="stored-full",
                title=f"Producer, batch 50, behind {x:g} GB",
                section="curve:stored",
                takes="rate",
                goal=Goal(of="stored-empty", of_ratio=0.95),
                paper=150_000,
                x=x,
                x_title="GB stored",
            ),
            Figure(
                name="stored-empty",
                title="Producer, batch 50, into an empty log",
                section="curve:stored",
                takes="empty_rate",
                paper=150_000,
                x=0,
                x_title="GB stored",
            ),
        ),
        block="stored",
        systems=(BROKER_ALONE,),
        least_rounds=7,
        share=CURVE_SHARE,
        stored_bytes=options.stored_bytes,
    )


def needed_bytes(found: tuple[Scenario, ...], options: Options, rounds: int) -> int:
    """The most that these scenarios hold on the disk at once, when so many rounds are asked for."""
    all_messages = options.messages * ENTRY_BYTES
    most = 0
    for scenario in found:
        size = all_messages * scenario.share
        if isinstance(scenario, Produce):
            _, message_bytes = options.payloads(scenario.message_bytes)
            size = options.messages * scenario.share * (message_bytes + ENTRY_OVERHEAD)
        elif isinstance(scenario, Consume | Mirrored):
            size = 2 * all_messages  # the round's backlog, and the ceiling's own, or the copy
        elif isinstance(scenario, FanOut):
            size = 2.2 * all_messages  # what the producers of up to three of them add stays until the round ends
        elif isinstance(scenario, InSpark) and scenario.job != "count":
            size *= scenario.runs + 2  # those that warm up are written too; a load reads a topic beside its tables
        elif isinstance(scenario, OfBatches):
            size *= 1.1  # as many records as fit whole batches
        elif isinstance(scenario, Recovery):
            size = scenario.segment_bytes
        elif isinstance(scenario, Stored):
            size = scenario.stored_bytes + (scenario.turns(rounds) + 1) * size
        most = max(most, int(size))
    return most
