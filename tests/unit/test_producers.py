"""What a partition knows of producers that number their batches: beside a slow model, and killed at every point."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log._append import Appender, append_sets, end_life
from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR, KEEPER
from fastlog.log.formats import format_number
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.slots import Numbered, ProducerState, SlotSpec
from tests.harness import stored_batches
from tests.harness.shared_log import DONE, FAILED, LIMITS, in_child
from tests.harness.single_steps import seen_between_instructions, single_steps
from tests.harness.stored_batches import batch

pytestmark = pytest.mark.usefixtures("no_faults")

DUPLICATE, OUT_OF_SEQUENCE, OLD_EPOCH = 6, 7, 8
LARGEST = 2**31 - 1
KILLED = -9
HOUR_MS = 3_600_000


class Log:
    """Partitions of record batches in an arena with a pool of so many blocks."""

    def __init__(self, directory: Path, partitions: int = 1, blocks: int = 64, expiry_ms: int = HOUR_MS) -> None:
        self.directory = directory
        self.arena = Arena([str(directory)], FIRST_PROCESSOR + 2, 8, 64, blocks, expiry_ms)
        for number in range(partitions):
            self.add(number)
        self.appender = Appender(self.arena, SegmentFiles(self.arena, 16), FIRST_PROCESSOR)

    def add(self, number: int, producers: tuple[ProducerState, ...] = (), **fields: int) -> int:
        folder = self.directory / f"t-{number}"
        folder.mkdir(exist_ok=True)
        (folder / f"{0:020}.log").write_bytes(b"")
        spec = SlotSpec(
            topic="t",
            partition=number,
            directory=0,
            format=format_number(RECORD_BATCHES),
            created_ms=1,
            segments=[(0, 1, 0)],
            log_end=0,
            producers=producers,
            **(LIMITS | fields),
        )
        return self.arena.add(spec)

    def append(self, *sent: tuple[int, int, int, int], slot: int = 0) -> list[tuple[int, int]]:
        """Append batches (producer, epoch, first number, records) in one run, as a processor does; status, offset."""
        datas = [
            batch(*[b"%d" % number] * count, producer_id=number, epoch=epoch, sequence=first)
            for number, epoch, first, count in sent
        ]
        pieces = [(data, item[3], item[3], -1) for data, item in zip(datas, sent, strict=True)]
        answers: list[tuple[int, int]] = []
        while pieces:
            status, offsets, _, _ = append_sets(self.appender, slot, pieces)
            done = len(offsets) - (status == DUPLICATE)
            answers += [(DONE, offset) for offset in offsets[:done]]
            pieces = pieces[done:]
            if status == DUPLICATE:
                answers.append((status, offsets[-1]))
            elif status != DONE:
                answers.append((status, -1))
            if status != DONE:
                pieces = pieces[1:]
        return answers

    def one(self, producer: int, epoch: int, first: int, count: int = 1, slot: int = 0) -> int:
        """The status of one batch."""
        ((status, _),) = self.append((producer, epoch, first, count), slot=slot)
        return status

    def known(self, slot: int = 0) -> list[ProducerState]:
        """What is known of producers, but for when they were heard of."""
        return [row._replace(age_ms=0) for row in self.arena.producers(slot)]

    def ids(self, slot: int = 0) -> list[int]:
        return [row.id for row in self.arena.producers(slot)]

    def count(self, name: str) -> int:
        return self.arena.counters(FIRST_PROCESSOR)[name]

    def stored(self) -> list[stored_batches.Batch]:
        return list(stored_batches.batches((self.directory / "t-0" / f"{0:020}.log").read_bytes()))


class Model:
    """One partition by Kafka's rules, with every batch kept."""

    def __init__(self) -> None:
        self.end = 0
        self.producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}

    def append(self, producer: int, epoch: int, first: int, count: int) -> tuple[int, int]:
        known, batches = self.producers.get(producer, (-1, []))
        if epoch < known:
            return OLD_EPOCH, -1
        if epoch == known:
            for number, records, offset in batches[-5:]:
                if (number, records) == (first, count):
                    return DUPLICATE, offset
            number, records, _ = batches[-1]
            if first != (number + records) % 2**31:
                return OUT_OF_SEQUENCE, -1
        elif known >= 0:
            if first != 0:
                return OUT_OF_SEQUENCE, -1
            batches = []
        offset = self.end
        self.end += count
        self.producers[producer] = epoch, [*batches, (first, count, offset)]
        return DONE, offset

    def state(self) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
        return sorted((number, epoch, batches[-5:]) for number, (epoch, batches) in self.producers.items())


def state_of(log: Log) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
    return [
        (
            row.id,
            row.epoch,
            [((one.last_sequence - one.delta) % 2**31, one.delta + 1, one.offset) for one in row.batches],
        )
        for row in log.arena.producers(0)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_every_batch_is_judged_as_the_model_does(tmp_path: Path, seed: int) -> None:
    """In runs of up to seven, copies within one run among them, of more producers than a write holds at once."""
    rng = random.Random(seed)
    log, model = Log(tmp_path), Model()
    for _ in range(250):
        run, assumed = [], {number: (epoch, list(kept)) for number, (epoch, kept) in model.producers.items()}
        for _ in range(rng.randrange(1, 8)):
            producer, count = rng.randrange(9), rng.randrange(1, 4)
            epoch, kept = assumed.get(producer, (0, []))
            first = (kept[-1][0] + kept[-1][1]) % 2**31 if kept else rng.choice([0, 5, LARGEST - 3])
            kind = rng.random()
            if kind < 0.25 and kept:
                first, count, _ = rng.choice(kept[-8:])
            elif kind < 0.35:
                first = (first + rng.choice([-2, -1, 1, 2, 77])) % 2**31
            elif kind < 0.42:
                epoch = max(0, epoch + rng.choice([-1, 1, 1]))
                first = rng.choice([0, 0, 1])
            else:
                assumed[producer] = epoch, [*kept, (first, count, 0)]
            run.append((producer, epoch, first, count))
        assert log.append(*run) == [model.append(*item) for item in run]
        assert state_of(log) == model.state()
    stored = log.stored()
    assert sum(one.last - one.base + 1 for one in stored) == model.end == log.arena.view(0).log_offset
    assert [one.base for one in stored] == [0, *(one.last + 1 for one in stored[:-1])]
    assert log.count("producers_forgotten_early") == 0


@pytest.mark.parametrize(
    ("first", "count", "following"),
    [(LARGEST - 1, 1, LARGEST), (LARGEST, 1, 0), (LARGEST - 2, 3, 0), (LARGEST - 1, 3, 1), (LARGEST, 3, 2)],
)
def test_numbers_begin_anew_behind_the_largest(tmp_path: Path, first: int, count: int, following: int) -> None:
    log = Log(tmp_path)
    assert log.one(7, 0, first, count) == DONE
    for wrong in {(following - 1) % 2**31, (following + 1) % 2**31}:
        assert log.one(7, 0, wrong, 9) == OUT_OF_SEQUENCE
    assert log.append((7, 0, following, 2), (7, 0, first, count)) == [(DONE, count), (DUPLICATE, 0)]


def test_the_last_five_batches_are_known_again_and_no_other(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert log.append(*((7, 0, 2 * number, 2) for number in range(6))) == [(DONE, 2 * number) for number in range(6)]
    assert log.append(*((7, 0, 2 * number, 2) for number in range(1, 6))) == [
        (DUPLICATE, 2 * number) for number in range(1, 6)
    ]
    assert log.one(7, 0, 0, 2) == OUT_OF_SEQUENCE
    # the same numbers in batches of another size, or of another first one, are not what was sent
    assert log.one(7, 0, 10, 1) == OUT_OF_SEQUENCE
    assert log.one(7, 0, 11, 1) == OUT_OF_SEQUENCE
    assert log.one(7, 0, 9, 3) == OUT_OF_SEQUENCE
    assert log.one(7, 0, 12, 1) == DONE
    assert len(log.stored()) == 7
    assert [one.time_ms for one in log.known()[0].batches] == [one.largest_ms for one in log.stored()[2:]]


def test_a_new_epoch_begins_with_0_and_ends_the_old_one(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert [log.one(7, 3, 40), log.one(7, 4, 41), log.one(7, 2, 0)] == [DONE, OUT_OF_SEQUENCE, OLD_EPOCH]
    assert [log.one(7, 4, 0), log.one(7, 3, 41), log.one(7, 4, 0), log.one(7, 4, 1)] == [
        DONE,
        OLD_EPOCH,
        DUPLICATE,
        DONE,
    ]


def test_a_write_that_fails_leaves_the_producer_as_it_was(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert log.one(7, 0, 0) == DONE
    before = log.known()
    _files.arm("pwrite@1=ENOSPC", "test")
    assert log.append((7, 0, 1, 1), (8, 0, 0, 1)) == [(FAILED, -1), (DONE, 1)]
    assert [row for row in log.known() if row.id == 7] == before
    assert log.append((7, 0, 1, 1), (7, 0, 0, 1)) == [(DONE, 2), (DUPLICATE, 0)]


def test_the_end_of_a_batch_is_where_it_ends_in_the_log(tmp_path: Path) -> None:
    """So a duplicate waits for the flush of its original, and for no more."""
    log = Log(tmp_path)
    ends = []
    for first in range(3):
        log.one(7, 0, first)
        ends.append(log.arena.view(0).log_end)
    log.append((8, 0, 0, 1), (7, 0, 3, 1))
    raw = log.arena.producer_ends(0)
    assert raw[7] == [*ends, log.arena.view(0).log_end]
    assert raw[8] == [(ends[2] + raw[7][3]) // 2]


# -- room -------------------------------------------------------------------------------------------------------------


def test_entries_of_its_own_come_before_blocks(tmp_path: Path) -> None:
    log = Log(tmp_path)
    taken = []
    for number in range(4 + 16 + 1):
        assert log.one(number, 0, 0) == DONE
        taken.append(log.arena.producer_blocks_taken)
    assert taken == [0] * 4 + [1] * 16 + [2]
    assert log.ids() == list(range(21))


def test_without_room_the_one_that_was_used_longest_ago_is_forgotten(tmp_path: Path) -> None:
    """No append fails for want of an entry; that somebody was forgotten so early is counted."""
    log = Log(tmp_path, blocks=0)
    states = [ProducerState(number, 0, (Numbered(0, 0, 0, 0),), age) for number, age in enumerate((9, 1, 7, 3))]
    slot = log.add(5, tuple(states))
    assert log.one(0, 0, 0, slot=slot) == DUPLICATE  # which is a use, too
    assert log.one(9, 0, 77, slot=slot) == DONE
    assert log.ids(slot) == [0, 1, 3, 9]
    assert log.one(2, 0, 50, slot=slot) == DONE  # it is one that nobody knows
    assert log.ids(slot) == [0, 1, 2, 9]
    assert log.count("producers_forgotten_early") == 2


def test_of_more_than_there_is_room_for_those_that_were_used_last_are_loaded(tmp_path: Path) -> None:
    """However long ago the others were, which go first as well when somebody new comes."""
    log = Log(tmp_path, blocks=0)
    ages = (9, 1, 2**50, 7, 3, 2**60)
    slot = log.add(5, tuple(ProducerState(n, 0, (Numbered(0, 0, 0, 0),), age) for n, age in enumerate(ages)))
    assert log.ids(slot) == [0, 1, 3, 4]
    ages = (2**50, 5, 2**60, 7)
    slot = log.add(6, tuple(ProducerState(n, 0, (Numbered(0, 0, 0, 0),), age) for n, age in enumerate(ages)))
    assert [log.one(number, 0, 0, slot=slot) for number in (8, 9)] == [DONE, DONE]
    assert log.ids(slot) == [1, 3, 8, 9]


def test_those_of_one_write_do_not_make_each_other_forgotten(tmp_path: Path) -> None:
    """Not even where all others were used in the same millisecond, as here most often: each may come again."""
    log = Log(tmp_path, blocks=0)
    for first in range(0, 200, 10):
        log.append(*((first + number, 0, 0, 1) for number in range(4)))
        sent = [(first + number, 0, 0, 1) for number in (7, 8, 9)]
        offsets = [offset for _, offset in log.append(*sent)]
        assert log.append(*sent) == [(DUPLICATE, offset) for offset in offsets]


@pytest.mark.parametrize(("age_ms", "early"), [(119_000, 1), (121_000, 0)])
def test_only_who_was_used_within_two_minutes_is_forgotten_early(tmp_path: Path, age_ms: int, early: int) -> None:
    log = Log(tmp_path, blocks=0)
    slot = log.add(1, tuple(ProducerState(number, 0, (Numbered(0, 0, 0, 0),), age_ms) for number in range(4)))
    assert log.one(9, 0, 0, slot=slot) == DONE
    assert log.count("producers_forgotten_early") == early


def test_a_partition_beyond_its_share_leaves_half_of_the_pool_to_others(tmp_path: Path) -> None:
    """16 blocks: a share is 2; one partition alone gets 8, and all others still get theirs."""
    log = Log(tmp_path, partitions=3, blocks=16)
    for number in range(4 + 8 * 16):
        assert log.one(number, 0, 0) == DONE
    assert (log.arena.producer_blocks_taken, log.count("producers_forgotten_early")) == (8, 0)
    for number in range(1000, 1100):
        assert log.one(number, 0, 0) == DONE
    assert (log.arena.producer_blocks_taken, log.count("producers_forgotten_early")) == (8, 100)
    for slot in (1, 2):
        for number in range(4 + 16 + 12):
            assert log.one(number, 0, 0, slot=slot) == DONE
    assert (log.arena.producer_blocks_taken, log.count("producers_forgotten_early")) == (12, 100)
    assert [len(log.ids(slot)) for slot in range(3)] == [132, 32, 32]


def test_a_producer_that_was_not_heard_of_is_one_that_nobody_knows(tmp_path: Path) -> None:
    log = Log(tmp_path, blocks=0, expiry_ms=HOUR_MS)
    old = tuple(ProducerState(number, 5, (Numbered(3, 0, 0, 0),), HOUR_MS - 60_000) for number in (1, 2, 3))
    slot = log.add(1, (*old, ProducerState(4, 5, (Numbered(3, 0, 0, 0),), HOUR_MS)))
    assert log.one(1, 4, 9, slot=slot) == OLD_EPOCH
    assert log.one(4, 4, 9, slot=slot) == DONE
    assert log.one(4, 4, 9, slot=slot) == DUPLICATE
    other = log.add(2, (*old, ProducerState(4, 5, (Numbered(3, 0, 0, 0),), HOUR_MS)))
    assert log.one(9, 0, 9, slot=other) == DONE
    assert log.ids(other) == [1, 2, 3, 9]
    assert log.count("producers_forgotten_early") == 0


def test_one_with_an_open_transaction_is_not_forgotten(tmp_path: Path) -> None:
    log = Log(tmp_path, blocks=0)
    held = [ProducerState(number, 0, (Numbered(0, 0, 0, 0),), 2 * HOUR_MS, 0) for number in range(3)]
    slot = log.add(1, (*held, ProducerState(3, 0, (Numbered(0, 0, 0, 0),), 1000)))
    for number in range(50, 60):
        assert log.one(number, 0, 0, slot=slot) == DONE
    assert log.ids(slot) == [0, 1, 2, 59]
    assert log.one(0, 0, 5, slot=slot) == OUT_OF_SEQUENCE  # nor over
    full = log.add(2, (*held, held[0]._replace(id=3)))
    assert log.one(9, 0, 5, slot=full) == DONE
    assert log.ids(full) == [0, 1, 2, 3]


def test_the_one_that_wrote_last_may_be_forgotten_too(tmp_path: Path) -> None:
    """Where all others have open transactions: it ends where the log does, and not behind it."""
    log = Log(tmp_path, partitions=0, blocks=0)
    held = tuple(ProducerState(number, 0, (Numbered(0, 0, 0, 0),), 0, 0) for number in range(3))
    slot = log.add(0, held)
    for first in range(2):  # in both versions of its entry, the second one last
        assert log.one(7, 0, first, slot=slot) == DONE
    assert log.ids(slot) == [0, 1, 2, 7]
    assert log.one(8, 0, 0, slot=slot) == DONE
    assert log.ids(slot) == [0, 1, 2, 8]


@pytest.mark.slow
def test_a_hundred_thousand_come_and_go_in_the_same_memory(tmp_path: Path) -> None:
    log = Log(tmp_path, blocks=2)
    for number in range(0, 100_000, 50):
        assert {status for status, _ in log.append(*((each, 0, 0, 1) for each in range(number, number + 50)))} == {DONE}
    assert log.arena.producer_blocks_taken == 1
    assert len(log.ids()) == 20
    assert log.one(99_999, 0, 0) == DUPLICATE


# -- lives ------------------------------------------------------------------------------------------------------------


def test_a_slot_that_is_free_has_given_its_blocks_back_and_knows_nobody(tmp_path: Path) -> None:
    log = Log(tmp_path, blocks=4)
    for number in range(30):
        log.one(number, 0, 0)
    assert (log.arena.producer_blocks_taken, log.arena.sequenced(0)) == (2, True)
    assert log.arena.create_lock()
    assert end_life(Appender(log.arena, SegmentFiles(log.arena, 4), KEEPER), 0)
    for process in range(log.arena.processes):
        log.arena.see(process, log.arena.change_count)
    log.arena.free(0)
    assert log.arena.producer_blocks_taken == 0
    assert log.add(0) == 0
    log.arena.create_unlock()
    assert (log.known(), log.arena.sequenced(0)) == ([], False)
    assert [log.one(3, 0, 9), log.one(29, 0, 9)] == [DONE, DONE]  # one in the slot, one in a block
    assert log.arena.sequenced(0)


def test_what_a_creator_that_died_wrote_of_producers_is_forgotten(tmp_path: Path) -> None:
    log = Log(tmp_path, blocks=4)
    states = [ProducerState(number, 0, (Numbered(0, 0, 0, 0),)) for number in range(9)]

    def create() -> None:
        assert log.arena.create_lock()
        log.add(1, tuple(states))

    assert in_child(create, "create.slot_written=kill") == -9
    assert log.arena.create_lock()
    slot = log.add(1, tuple(states[5:7]))
    log.arena.create_unlock()
    assert (log.ids(slot), log.arena.producer_blocks_taken) == ([5, 6], 0)


def test_what_a_recovered_log_knew_is_known(tmp_path: Path) -> None:
    log = Log(tmp_path)
    kept = tuple(Numbered(10 * number + 9, 10 * number, 9, 5) for number in range(7))
    states = tuple(ProducerState(number, 2, kept[: number + 1]) for number in range(7))
    slot = log.add(1, states)
    assert log.known(slot) == [state._replace(batches=state.batches[-5:]) for state in states]
    assert log.append((6, 2, 20, 10), (6, 2, 70, 1), slot=slot) == [(DUPLICATE, 20), (DONE, 0)]


# -- deaths -----------------------------------------------------------------------------------------------------------

POINTS = [
    ("append.after_lock", False),
    ("append.mid_write", False),
    ("append.after_write", False),
    ("producer.begun", False),
    ("producer.written", False),
    ("append.cell_open", False),
    ("append.cell_filled", False),
    ("append.published", True),
    ("append.before_unlock", True),
]


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize(("point", "is_there"), POINTS)
def test_a_writer_that_dies_leaves_its_producer_as_its_log(
    tmp_path: Path, point: str, is_there: bool, is_new: bool
) -> None:
    """Also when somebody else's append takes the log past the end that the dead one wrote for."""
    log = Log(tmp_path)
    for number in range(3):
        assert log.append((7, 0, 2 * number, 2), (8, 0, number, 1)) == [(DONE, 3 * number), (DONE, 3 * number + 2)]
    lost = (9, 0, 40, 2) if is_new else (7, 0, 6, 2)
    assert in_child(lambda: log.append(lost), f"{point}@1=kill") == KILLED
    assert log.append((8, 0, 3, 5))[0][0] == DONE
    assert log.append(lost) == [(DUPLICATE, 9) if is_there else (DONE, 14)]
    assert log.append((7, 0, 4, 2), (8, 0, 2, 1)) == [(DUPLICATE, 6), (DUPLICATE, 8)]
    assert log.count("repairs") == 1
    assert [one.base for one in log.stored()] == [0, *(one.last + 1 for one in log.stored()[:-1])]


def test_who_was_to_be_forgotten_is_known_when_the_writer_died(tmp_path: Path) -> None:
    log = Log(tmp_path, blocks=0)
    states = tuple(ProducerState(number, 0, (Numbered(5, 0, 0, 0),), 10_000 * (number + 1)) for number in range(4))
    slot = log.add(1, states)
    assert in_child(lambda: log.append((9, 0, 0, 1), slot=slot), "append.cell_filled@1=kill") == KILLED
    assert log.one(2, 0, 5, slot=slot) == DUPLICATE
    assert log.known(slot) == [state._replace(age_ms=0) for state in states]


def test_a_block_whose_taker_died_is_free_again(tmp_path: Path) -> None:
    log = Log(tmp_path, partitions=2, blocks=1)
    for number in range(4):
        log.one(number, 0, 0)
    assert in_child(lambda: log.one(9, 0, 0), "producer.block_taken@1=kill") == KILLED
    assert log.arena.producer_blocks_taken == 1
    assert log.one(0, 0, 0) == DUPLICATE
    assert log.arena.producer_blocks_taken == 0
    for number in range(5):
        assert log.one(number, 0, 0, slot=1) == DONE
    assert log.ids(1) == [0, 1, 2, 3, 4]


@single_steps
@pytest.mark.parametrize("blocks", [0, 1])
def test_between_any_two_instructions_the_producer_is_that_of_the_log_end(tmp_path: Path, blocks: int) -> None:
    """Of a producer that goes on, and of one that takes the place of another, or a block."""
    log = Log(tmp_path, blocks=blocks)
    for number in range(4):
        log.append(*((number, 0, first, 1) for first in range(6)))
    datas = [
        (batch(b"x" * 50, producer_id=number, sequence=first), 1, 1, -1) for number, first in ((2, 6), (2, 7), (50, 0))
    ]
    seen = seen_between_instructions(
        lambda: append_sets(log.appender, 0, datas), lambda: (log.arena.view(0).log_end, log.known())
    )
    ends = [end for end, _ in seen]
    assert len(seen) == 2
    assert ends[0] < ends[1]
    assert [row.id for row in seen[0][1]] == [0, 1, 2, 3]
    assert (50 in [row.id for row in seen[1][1]], len(seen[1][1])) == (True, 4 + blocks)
    assert next(row for row in seen[1][1] if row.id == 2).batches[-1].last_sequence == 7
