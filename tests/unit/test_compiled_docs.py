"""A compiled function that another file calls says what it does: where it is declared, or where it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.checkout import ROOT

DECLARED = re.compile(r"^( *)cdef (?:inline )?(?!class|enum|struct|packed|extern)[\w *\[\],]*?\b(\w+)\(")
CLASS = re.compile(r"^cdef class (\w+)(?:\((\w+)\))?.*:$", re.M)


@dataclass
class Module:
    """A compiled module: the text of its ``.pxd`` and of its ``.pyx``."""

    header: str = ""
    source: str = ""
    bases: dict[str, str] = field(default_factory=dict)
    """Classes with the names of their bases."""


def modules(root: Path) -> dict[str, Module]:
    """All that have a ``.pxd``, by their names."""
    found: dict[str, Module] = {}
    for header in sorted((root / "fastlog").rglob("*.pxd")):
        source = header.with_suffix(".pyx")
        name = ".".join(header.relative_to(root).with_suffix("").parts)
        found[name] = Module(header.read_text(), source.read_text() if source.exists() else "")
        found[name].bases = {match[1]: match[2] or "" for match in CLASS.finditer(found[name].header)}
    return found


def declared(module: Module) -> Iterator[tuple[str, str, bool]]:
    """Each function of the ``.pxd`` with its class, "" for none, and whether a comment stands at it."""
    owner = ""
    before = ""
    for line in module.header.splitlines():
        if line and not line.startswith(" "):
            begun = CLASS.match(line)
            owner = begun[1] if begun else ""
        found = DECLARED.match(line)
        if found and not line.rstrip().endswith(":"):
            yield (owner if found[1] else ""), found[2], before.strip().startswith("#") or "#" in line
        before = line


def has_docstring(text: str, owner: str, name: str) -> bool:
    """Whether the function begins with a docstring where ``text`` has it."""
    if owner:
        begun = re.search(rf"^cdef class {owner}\b", text, re.M)
        if begun is None:
            return False
        text = text[begun.end() :]
    indent = "    " if owner else ""
    found = re.search(rf"^{indent}cdef [^\n(]*\b{name}\((?:[^)]|\n)*?\)[^:\n]*:\n\s*(.*)$", text, re.M)
    return found is not None and found[1].startswith('"""')


def undocumented(found: dict[str, Module]) -> list[str]:
    """What others call and nothing is said of."""
    said = {}
    for name, module in found.items():
        for owner, function, is_said in declared(module):
            said[name, owner, function] = is_said or any(
                has_docstring(text, owner, function) for text in (module.source, module.header)
            )
    of_class = {(owner, function) for (_, owner, function), is_said in said.items() if owner and is_said}
    missing = []
    for (name, owner, function), is_said in said.items():
        if is_said or (found[name].bases.get(owner, ""), function) in of_class:
            continue
        calls = re.compile(rf"\b{function}\(")
        imports = re.compile(rf"\bfrom {re.escape(name)} cimport\b")
        users = [each for each in found.values() if imports.search(each.header + each.source)]
        if any(calls.search(user.source) for user in users if user is not found[name]):
            missing.append(f"{name}: {owner + '.' if owner else ''}{function}")
    return missing


def test_what_other_files_call_is_described() -> None:
    found = modules(ROOT)
    assert len(found) > 50
    assert undocumented(found) == []


def test_what_is_missing_is_found() -> None:
    """In a function, in a method, and not where a base class says it."""
    found = {
        "fastlog._a": Module(
            "cdef int one(int n) noexcept nogil\n# says it\ncdef int two(int n) noexcept nogil\ncdef class Base:\n"
            "    cdef int three(self) noexcept nogil\n    cdef int four(self) noexcept nogil\n",
            "cdef int one(int n) noexcept nogil:\n    return n\ncdef class Base:\n"
            '    cdef int three(self) noexcept nogil:\n        """Says it."""\n'
            "    cdef int four(self) noexcept nogil:\n        return 4\n",
            {"Base": ""},
        ),
        "fastlog._b": Module(
            "from fastlog._a cimport Base\ncdef class Other(Base):\n    cdef int three(self) noexcept nogil\n",
            "from fastlog._a cimport one, two\ncdef int use(Base b):\n"
            "    return one(1) + two(2) + b.three() + b.four()\n",
            {"Other": "Base"},
        ),
        "fastlog._c": Module("", "from fastlog._b cimport Other\ncdef int use(Other b):\n    return b.three()\n"),
    }
    assert undocumented(found) == ["fastlog._a: one", "fastlog._a: Base.four"]
