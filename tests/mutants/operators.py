"""The planted bugs: what a tired engineer writes and a reviewer misses, one change of one or two lines each.

A mutant is found by text, not by a syntax tree: one set of operators serves Python, Cython and C, and the formatted
sources have blanks around every binary operator (``<int>x`` has none). What does not compile is no mutant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.harness.checkout import ROOT
from tests.mutants.sources import SUFFIXES, code_lines, source_lines


@dataclass(frozen=True)
class Mutant:
    """One change: ``before`` (whole lines of ``path``, from ``line`` on, counted from 1) becomes ``after``.

    ``name`` stays while other lines of the file move: it is made of the path, the operator, the lines and how many
    equal ones stand above.
    """

    name: str
    path: str
    line: int
    operator: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    def apply(self, text: str) -> str:
        """Return the text of the file with this bug in it.

        Raises:
            ValueError: the lines are not those that the mutant was made from.
        """
        lines = text.splitlines(keepends=True)
        first = self.line - 1
        if tuple(line.rstrip("\n") for line in lines[first : first + len(self.before)]) != self.before:
            raise ValueError(f"{self.path}:{self.line} is not what {self.name} was made from")
        lines[first : first + len(self.before)] = [f"{line}\n" for line in self.after]
        return "".join(lines)

    def shown(self) -> str:
        """Return the place, the operator and both texts, for a report."""
        changed = [(b, a) for b, a in zip(self.before, self.after, strict=True) if a != b]
        return f"{self.name} {self.path}:{self.line} {self.operator}\n" + "\n".join(
            f"  - {before.strip()}\n  + {after.strip() or '(nothing)'}" for before, after in changed
        )


Rewrite = Callable[[str, str], Iterator[str]]
"""Takes a line and its masked twin, yields the line with one bug in it, for each place in it."""


def _replacing(pattern: str, replacement: Callable[[re.Match[str]], str | None]) -> Rewrite:
    compiled = re.compile(pattern)

    def rewrite(line: str, mask: str) -> Iterator[str]:
        for found in compiled.finditer(mask):
            new = replacement(found)
            if new is not None:
                yield line[: found.start()] + new + line[found.end() :]

    return rewrite


def _table(pattern: str, table: dict[str, str]) -> Rewrite:
    return _replacing(pattern, lambda found: table.get(found[0]))


_TYPE_WORD = re.compile(r"(None|str|bytes|int|float|bool|object|[A-Z]\w*\]?|\])$")


def _or_of_bits(found: re.Match[str]) -> str | None:
    """``a | b`` of numbers; ``X | None`` is a type."""
    before, after = found.string[: found.start()], found.string[found.end() :].lstrip()
    if _TYPE_WORD.search(before) or re.match(r"None\b|[A-Z][a-z]|str\b|bytes\b|int\b|float\b|bool\b", after):
        return None
    return " & "


def _constant(found: re.Match[str]) -> str | None:
    word = found[0]
    if word in ("True", "False"):
        return "False" if word == "True" else "True"
    if word.lower().startswith("0x"):
        return f"{int(word, 16) + 1:#x}"
    if not word.isdigit():
        return None
    return "1" if word == "0" else "0" if word == "1" else str(int(word) + 1)


LINE_OPERATORS: dict[str, Rewrite] = {
    "boundary": _table(r" (?:<=|>=|<|>) ", {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > "}),
    "equality": _table(
        r" (?:==|!=|is not|is|not in) ",
        {" == ": " != ", " != ": " == ", " is ": " is not ", " is not ": " is ", " not in ": " in "},
    ),
    "arithmetic": _table(
        r" (?:\+|-|\*|//|<<|>>|&|%|\+=|-=) ",
        {" + ": " - ", " - ": " + ", " * ": " + ", " // ": " * ", " << ": " >> ", " >> ": " << ", " & ": " | ",
         " % ": " + ", " += ": " -= ", " -= ": " += "},
    ),
    "bits": _replacing(r" \| ", _or_of_bits),
    "logic": _table(r" (?:and|or|&&|\|\|) ", {" and ": " or ", " or ": " and ", " && ": " || ", " || ": " && "}),
    "negation": _replacing(r"(?<=\b(?:if|nd|or|rn|le) )not (?!in\b)", lambda found: ""),
    "extreme": _table(r"\b(?:min|max)(?=\()", {"min": "max", "max": "min"}),
    "constant": _replacing(r"(?<![\w.\[])(?:0[xX][0-9A-Fa-f]+|\d+|True|False)(?![\w.])", _constant),
}  # fmt: skip

_CALL = re.compile(r"^\s*[\w.\[\]]+\((?P<arguments>.*)\);?$")
_FENCE = re.compile(r"\b(fl_fence|__atomic_thread_fence)\(")
_REPORTING = re.compile(r"^\s*(?:self\.)?_?(?:log|LOG|logger|logging|say|print|click|warnings)\b|super\(\)|^\s*raise\b")
_ASSIGNED = re.compile(r"^\s*[\w\[\]]+(?:\.[\w\[\]]+)+ = \S.*$")
_PUBLISH = re.compile(
    r"^\s*(?:fl_(?:store|or|ask\w*|and|swap|bump|mark_dirty|clear\w*|wake\w*|fence)|atomic_\w+|(?:os|self|[\w.]+)\."
    r"(?:replace|rename|fsync|fdatasync|unlink|truncate|write\w*|sync\w*|set|clear|notify\w*|release|close|wake\w*|put\w*)"
    r"|file_\w+|sync_\w+|fsync_\w+)\(.*\);?$"
)
_GUARD = re.compile(r"^(?P<indent>\s*)(?P<word>if|elif) (?P<condition>.+):$")
_LEAVES = re.compile(r"^\s*(raise|return|continue|break)\b")
_RAISES = re.compile(r"^(?P<indent>\s*)raise\b.*$")
_ALLOCATES = re.compile(r"^\s*(?:cdef [\w* ]*?)?(?P<name>[\w.]+) = (?:<[\w* ]+>)?(?:malloc|calloc|realloc)\(")
_NO_MEMORY = re.compile(r"[\w.]+(?= == NULL)")


def _asks_for_memory(masks: list[str], index: int) -> bool:
    """Whether a line asks only if what the lines right above have allocated is there.

    Memory is refused to a processor at work alone (tests/fault/test_refused_memory.py): elsewhere nobody can tell what
    is done then.
    """
    guard = _GUARD.match(masks[index]) if index >= 0 else None
    asked = {f"{name} == NULL" for name in _NO_MEMORY.findall(guard["condition"])} if guard else set()
    if not guard or set(guard["condition"].split(" or ")) != asked:
        return False
    while index and (found := _ALLOCATES.match(masks[index - 1])):
        asked.discard(f"{found['name']} == NULL")
        index -= 1
    return not asked


def _balanced(mask: str) -> bool:
    return all(mask.count(a) == mask.count(b) for a, b in ("()", "[]", "{}"))


def _statement_mutants(lines: list[str], masks: list[str], index: int, is_c: bool) -> Iterator[tuple[str, list[str]]]:
    """What needs to know a whole statement, or the one behind it: (operator, the lines instead)."""
    line, mask = lines[index], masks[index]
    indent = line[: len(line) - len(line.lstrip())]
    nothing = f"{indent};" if is_c else f"{indent}pass"
    whole = _balanced(mask) and (is_c or not mask.rstrip().endswith((",", "\\")))
    complete_before = index == 0 or is_c or _balanced_until(masks, index)
    if not (whole and complete_before):
        return
    if _FENCE.search(mask) and _CALL.match(mask):
        yield "fence", [nothing]
    elif _CALL.match(mask) and not _REPORTING.search(mask):
        yield "call", [nothing]
    elif _ASSIGNED.match(mask) and "__" not in mask:
        yield "assignment", [nothing]
    guard = _GUARD.match(mask)
    following = masks[index + 1] if index + 1 < len(masks) else ""
    if guard and _LEAVES.match(following) and not _asks_for_memory(masks, index):
        yield "check", [f"{indent}{guard['word']} False:"]
    if not is_c and _RAISES.match(mask) and not _asks_for_memory(masks, index - 1):
        yield "error", [nothing]
    if (
        following
        and _balanced(following)
        and following[: len(indent) + 1].strip() != ""
        and following.startswith(indent)
        and following.strip() != mask.strip()
    ):
        # two plain fields of one object, set one after the other, are seen by nobody in between
        published = [bool(_PUBLISH.match(m)) for m in (mask, following)]
        if any(published) and all(p or _ASSIGNED.match(m) for p, m in zip(published, (mask, following), strict=True)):
            yield "exchange", [lines[index + 1], line]


def _balanced_until(masks: list[str], index: int) -> bool:
    """Whether a statement begins at this line: no bracket of the lines above is open."""
    depth = 0
    for mask in reversed(masks[max(0, index - 40) : index]):
        depth += sum(mask.count(c) for c in ")]}") - sum(mask.count(c) for c in "([{")
        if depth < 0:
            return False
    return True


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a source file, in the order of its lines."""
    lines, masks = source_lines(path)
    relative = str(path.relative_to(ROOT))
    is_c = path.suffix == ".h"
    seen: dict[tuple[str, tuple[str, ...], tuple[str, ...]], int] = {}

    def made(index: int, operator: str, after: list[str]) -> Mutant:
        before = tuple(lines[index : index + len(after)])
        key = (operator, before, tuple(after))
        seen[key] = seen.get(key, 0) + 1
        text = "\n".join((relative, operator, *before, *after, str(seen[key])))
        name = hashlib.sha256(text.encode()).hexdigest()[:10]
        return Mutant(name, relative, index + 1, operator, before, tuple(after))

    for index in sorted(code_lines(path)):
        line, mask = lines[index], masks[index]
        if not mask.strip() or _REPORTING.search(mask):
            if mask.strip() and not is_c and _RAISES.match(mask):
                for operator, after in _statement_mutants(lines, masks, index, is_c):
                    yield made(index, operator, after)
            continue
        for operator, rewrite in LINE_OPERATORS.items():
            if operator == "logic" and _asks_for_memory(masks, index):
                continue
            for after_line in rewrite(line, mask):
                yield made(index, operator, [after_line])
        for operator, after in _statement_mutants(lines, masks, index, is_c):
            yield made(index, operator, after)


def all_mutants(paths: list[Path]) -> list[Mutant]:
    """Return the mutants of these files and folders, those that do not compile with them."""
    found: list[Mutant] = []
    for path in paths:
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)
        for file in files:
            found += mutants_of(file)
    return found


def compiles(mutant: Mutant) -> bool:
    """Whether Python takes it; of Cython and C their compilers say so."""
    if not mutant.path.endswith(".py"):
        return True
    try:
        compile(mutant.apply((ROOT / mutant.path).read_text()), "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
