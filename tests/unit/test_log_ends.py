"""An end of a log and what belongs to it stay together, wherever a writer stands or dies and a reader is overtaken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.test_log_fences import compiled

PROGRAM = """
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static void at(const char *step, const void *word);
#define __atomic_load_n(word, order) (at("load " #order, word), *(word))
#define __atomic_store_n(word, value, order) (at("store " #order, word), (void)(*(word) = (value)))
#define __atomic_thread_fence(order) at("fence " #order, NULL)
#include "_arena.h"
static uint64_t word;
static fl_end ends[2];
static uint64_t published;
static int steps, target, tells, inside;
static void (*then)(void);
static jmp_buf dead;
static void at(const char *step, const void *place) {
    if (inside) return;
    if (tells) {
        const char *name = place == NULL ? "" : place == &word ? " word" : place == &ends[0].position ||
            place == &ends[1].position ? " position" : " content";
        printf("%s%s\\n", step, name);
    }
    if (++steps != target) return;
    inside = 1;
    then();
    inside = 0;
}
static void publish(void) {
    fl_end end = {.position = (published + 1) * 10, .offset = published + 1, .messages = (published + 1) * 7,
                  .unindexed = (published + 1) * 3, .largest_offset = (published + 1) * 13};
    fl_end_publish(&word, ends, &end);
    published++;
}
static int reads(uint64_t low, uint64_t high) {
    fl_end out = {0};
    fl_end_read(&word, ends, &out);
    if (out.position != out.offset * 10 || out.messages != out.offset * 7 || out.unindexed != out.offset * 3 ||
        out.largest_offset != out.offset * 13 || out.offset < low || out.offset > high) {
        printf("at step %d of %d to %d: position %d, offset %d, messages %d\\n", target, (int)low, (int)high,
               (int)out.position, (int)out.offset, (int)out.messages);
        return 0;
    }
    return 1;
}
static int often, wrong;
static void publishes(void) { for (int i = 0; i < often; i++) publish(); }
static void is_read(void) { wrong += !reads(published, published + 1); }
static void dies(void) { longjmp(dead, 1); }
static void begin(int number, void (*what)(void), int already) {
    target = 0;
    word = 0;
    ends[0] = ends[1] = (fl_end){0};
    ends[1].position = FL_NO_POSITION;
    published = 0;
    for (int i = 0; i < already; i++) publish();
    steps = 0;
    target = number;
    then = what;
}
int main(int count, char **arguments) {
    int mode = atoi(arguments[1]), all = 0, own;
    if (mode == 0) { begin(-1, NULL, 1); tells = 1; publish(); puts("--"); return !reads(2, 2); }
    for (int number = 1; number < 64; number++)
        for (int already = 0; already < 3; already++) {
            if (mode == 1) /* the writer overtakes a reader, up to five times */
                for (often = 1; often < 6; often++) {
                    begin(number, publishes, already);
                    wrong += !reads(already, already + often);
                    all += steps >= number;
                }
            if (mode == 2) { /* a reader comes while the writer is in the middle */
                begin(number, is_read, already);
                publish();
                all += steps >= number;
                wrong += !reads(already + 1, already + 1);
            }
            if (mode == 3) { /* the writer is killed, and another one goes on from what is published */
                begin(number, dies, already);
                if (setjmp(dead) == 0) publish();
                all += steps >= number;
                inside = 0;
                target = -1;
                own = (int)fl_end_own(&word, ends)->offset;
                wrong += own != (int)(word / 10) || !reads(own, own) || own < already || own > already + 1;
                published = own;
                publish();
                wrong += !reads(own + 1, own + 1);
                publish();
                wrong += !reads(own + 2, own + 2);
            }
        }
    printf("%d\\n", all);
    return wrong != 0;
}
"""


CONTENTS = 8
"""Words of an end beside its position."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(PROGRAM, tmp_path_factory.mktemp("ends"), "-pthread", "-Wno-unused-parameter")


def run(program: Path, mode: int) -> list[str]:
    done = subprocess.run([program, str(mode)], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("mode", "least"), [(1, 60), (2, 15), (3, 15)], ids=["reader overtaken", "writer read", "writer killed"]
)
def test_an_end_is_read_whole(mode: int, least: int, program: Path) -> None:
    assert int(run(program, mode)[-1]) >= least


def test_the_steps_of_a_writer_and_of_a_reader(program: Path) -> None:
    """A cell says nothing before its contents change; a reader looks at it again behind them. The word comes last."""
    steps = run(program, 0)
    middle = steps.index("--")
    assert steps[:middle] == [
        "store __ATOMIC_RELEASE position",
        "fence __ATOMIC_RELEASE",
        *["store __ATOMIC_RELAXED content"] * CONTENTS,
        "store __ATOMIC_RELEASE position",
        "store __ATOMIC_RELEASE word",
    ]
    assert steps[middle + 1] == "load __ATOMIC_ACQUIRE word"
    assert steps[-3 - CONTENTS :] == [
        "load __ATOMIC_ACQUIRE position",
        *["load __ATOMIC_RELAXED content"] * CONTENTS,
        "fence __ATOMIC_ACQUIRE",
        "load __ATOMIC_RELAXED position",
    ]
