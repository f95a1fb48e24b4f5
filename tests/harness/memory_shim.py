"""Memory that compiled modules ask for: counted by the place in their code that asks, and refused to one of them.

``memory_shim.c`` stands between the modules and the allocator. What Python itself asks for comes from elsewhere, so
that a test goes on in the very process in which a request is refused.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def build(directory: Path) -> Path:
    """Compile the shim into a directory; return the library."""
    library = directory / "memory_shim.so"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [*compiler.split(), "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def preloaded(library: Path) -> str:
    """LD_PRELOAD of a program that runs behind the shim; another one that is preloaded stays first."""
    return ":".join(filter(None, (os.environ.get("LD_PRELOAD"), str(library))))


class Memory:
    """The shim of this process, which watches the modules that are loaded from files below a folder."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(None)  # what is loaded already
        self._library.memory_place.restype = ctypes.c_size_t
        self._library.memory_watch.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._modules: list[tuple[int, int, int, str]] = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, rights, offset, _, _, *name = line.split(maxsplit=5)
            if "x" in rights and name and name[0].startswith(f"{folder}/") and name[0].endswith(".so"):
                begin, end = (int(address, 16) for address in addresses.split("-"))
                if self._library.memory_watch(begin, end) != 0:
                    raise RuntimeError("more modules than the shim has room for")
                module = Path(name[0]).relative_to(folder).as_posix().partition(".")[0]
                self._modules.append((begin, end, int(offset, 16), module))

    def places(self) -> list[str]:
        """Where memory has been asked for so far: module and address in it; the number is the index here."""
        return list(self._places())

    def _places(self) -> Iterator[str]:
        number = 0
        while address := self._library.memory_place(number):
            begin, _, offset, module = next(found for found in self._modules if found[0] <= address < found[1])
            yield f"{module}+{address - begin + offset:#x}"
            number += 1

    def calls(self) -> list[int]:
        """How often each of them has asked."""
        return [self._library.memory_calls(number) for number in range(len(self.places()))]

    def refuse(self, place: int, calls: int) -> None:
        """Let this place have nothing the next so many times; none before it is refused any more."""
        self._library.memory_refuse(place, calls)

    def refused(self) -> int:
        """How many calls have been refused since."""
        return int(self._library.memory_refused())
