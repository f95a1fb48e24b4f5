"""Who stores a word and then looks whether somebody waits for it: the look must not come first.

A processor may do a later load before an earlier store. What is lost by that is one wake-up in many millions, which no
run shows for certain; so the instructions are looked at that the header becomes.
"""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.harness.checkout import ROOT

BARRIERS = {"x86_64": r"\bmfence\b|\block\b", "aarch64": r"\bdmb\s+ish\b"}
LOADS = {"x86_64": r"\(%r\w+", "aarch64": r"\bld\w+\s.*\["}

SOURCE = """
#include "_arena.h"
void told(fl_header *h, const int *fds, uint64_t *word, uint64_t *waiters) {
    fl_store(word, 1);
    __asm__ volatile("# behind the store");
    fl_wake_waiters(h, fds, waiters);
}
void marked(fl_header *h, uint64_t *word, uint64_t slot) {
    fl_store(word, 1);
    __asm__ volatile("# behind the store");
    fl_mark_dirty(h, slot);
}
void fenced(uint64_t *word, const uint64_t *other, uint64_t *found) {
    fl_store(word, 1);
    __asm__ volatile("# behind the store");
    fl_fence();
    *found = fl_load(other);
}
void one_waits(uint64_t *waiters, const uint64_t *word, uint64_t *found) {
    __asm__ volatile("# behind the store");
    fl_or(waiters, 4);
    fl_fence();
    *found = fl_load(word);
}
"""


STEPS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define KEPT(step, word, changed) ({ uint64_t kept = *(word); *(word) = changed; puts(step); kept; })
#define __atomic_fetch_or(word, bits, order) KEPT("or " #order, word, kept | (bits))
#define __atomic_fetch_and(word, bits, order) KEPT("and " #order, word, kept & (bits))
#define __atomic_exchange_n(word, value, order) KEPT("swap " #order, word, value)
#define __atomic_thread_fence(order) puts("fence " #order)
#define __atomic_load_n(word, order) (puts("load " #order), *(word))
#define __atomic_store_n(word, value, order) (puts("store " #order), *(word) = (value))
#include "_arena.h"
static struct { fl_header header; uint64_t dirty[2]; } arena;
int main(int count, char **arguments) {
    fl_header *h = &arena.header;
    int none[] = {-1, -1};
    uint64_t waiters = 1;
    h->dirty_offset = (uint64_t)((char *)arena.dirty - (char *)h);
    h->wake_flags[0] = arena.dirty[1] = 3;
    switch (count > 1 ? atoi(arguments[1]) : 0) {
    case 1: fl_ask(&waiters, 4); return waiters != 5;
    case 2: fl_ask_once(&waiters, 4); return waiters != 5;
    case 3: fl_ask_once(&waiters, 1); return waiters != 1;
    case 4: fl_wake_taken(h, none, 0); return h->wake_flags[0] != 0;
    case 5: fl_clear_wake_flag(h, 0); return h->wake_flags[0] != 0;
    case 6: fl_clear_dirty(h, 65); return arena.dirty[1] != 1;
    case 7: fl_wake_waiters(h, none, &waiters); return waiters != 0 || h->wake_flags[FL_FLUSHER] != 1;
    case 8: fl_wake_flusher(h, none, 66); return arena.dirty[1] != 7 || h->wake_flags[FL_FLUSHER] != 1;
    case 9: h->processes = 2; fl_set_stopping(h, none, 3); return h->stopping != 3 || h->wake_flags[1] != 1;
    }
    return 1;
}
"""


def compiled(source: str, directory: Path, *options: str) -> Path:
    """What a compiler makes of it, with the header of the arena at hand."""
    (directory / "fences.c").write_text(source)
    compiler = shlex.split(str(sysconfig.get_config_var("CC") or "cc"))[0]
    run = subprocess.run(
        [compiler, "-O2", *options, "-I", str(ROOT / "fastlog" / "log"), "-o", "fences", "fences.c"],
        cwd=directory,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return directory / "fences"


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Of each function of the source, the lines behind its store."""
    return functions(compiled(SOURCE, tmp_path_factory.mktemp("fences"), "-S").read_text())


def functions(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if label := re.fullmatch(r"(told|marked|fenced|one_waits):.*", line):
            lines = found[label[1]] = []
        elif "behind the store" in line and lines is not None:
            lines.clear()
        elif re.match(r"\t\.size", line):
            lines = None
        elif lines is not None:
            lines.append(line.strip())
    return found


@pytest.mark.skipif(platform.machine() not in BARRIERS, reason="instructions of another kind")
@pytest.mark.parametrize("name", ["told", "marked", "fenced", "one_waits"])
def test_nothing_is_loaded_before_the_store_is_seen(name: str, instructions: dict[str, list[str]]) -> None:
    barrier, load = BARRIERS[platform.machine()], LOADS[platform.machine()]
    lines = instructions[name]
    at = next((number for number, line in enumerate(lines) if re.search(barrier, line)), None)
    assert at is not None, lines
    before = [line for line in lines[:at] if re.search(load, line) and not line.startswith("lea")]
    constant = 1 if name == "marked" else 0  # where the bitmap lies may be looked up at any time
    assert len(before) <= constant, lines


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that does one thing and prints its steps."""
    return compiled(STEPS, tmp_path_factory.mktemp("steps"), "-pthread")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (1, ["or", "fence"]),
        (2, ["load", "or", "fence"]),
        (3, ["load", "fence"]),
        (4, ["swap", "fence"]),
        (5, ["swap", "fence"]),
        (6, ["and", "fence"]),
        (7, ["fence", "load", "swap", "swap"]),
    ],
)
def test_who_looks_once_more_does_so_behind_a_fence(steps: Path, case: int, expected: list[str]) -> None:
    """Also where the change before it is a barrier by itself, so that no run shows the fence: the steps are told."""
    assert taken(steps, case) == expected


def test_the_flusher_is_woken_when_it_can_see_what_for(steps: Path) -> None:
    """One that runs at once finds the partition marked; the swap is of the flag that says it is woken."""
    assert taken(steps, 8) == ["fence", "load", "or", "swap"]


def test_whoever_is_woken_for_a_stop_sees_it(steps: Path) -> None:
    assert taken(steps, 9) == ["store", "swap", "swap"]


ORDERS = {"load": "__ATOMIC_ACQUIRE", "store": "__ATOMIC_RELEASE"}


def taken(steps: Path, case: int) -> list[str]:
    done = subprocess.run([steps, str(case)], check=True, capture_output=True, text=True)
    found = [line.split() for line in done.stdout.splitlines()]
    assert all(order == ORDERS.get(step, "__ATOMIC_SEQ_CST") for step, order in found), found
    return [step for step, _ in found]
