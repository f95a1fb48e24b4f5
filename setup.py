"""Builds the extensions: every ``.pyx`` below ``fastlog/`` is one module.

``FASTLOG_DEBUG=1`` builds with bounds checks, C assertions and line tracing, ``FASTLOG_SANITIZE=1`` with
AddressSanitizer and UndefinedBehaviorSanitizer (``scripts/test-sanitized``). ``FASTLOG_NO_EXTENSIONS=1`` leaves the
extensions out: an editable installation would compile them all again, although ``build_ext --inplace`` just did.
"""

import itertools
import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("FASTLOG_DEBUG") == "1"
SANITIZE = os.environ.get("FASTLOG_SANITIZE") == "1"
ROOT = Path(__file__).parent

directives = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "linetrace": DEBUG,
    "embedsignature": True,
    "freethreading_compatible": False,
}
# -g0, because many a Python has itself been compiled with -g and passes that on.
compile_args = ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0", "-fno-semantic-interposition"]
link_args = ["-pthread"]  # a library of its own up to glibc 2.33
if SANITIZE:
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    # Many a Python has been compiled with -fwrapv and passes that on: signed numbers that overflow would not be found.
    # -Og is compiled about as quickly as -O0, twice to three times as quickly as -O1; a report shows lines and no more.
    compile_args = ["-Og", "-g1", "-fno-omit-frame-pointer", "-fno-wrapv", *sanitizers]
    # Its runtime is a part of each library: beside that of the other, it would not know the file for its reports.
    link_args += [*sanitizers, "-static-libubsan", "-Wl,--exclude-libs,libubsan.a"]
macros = [("_GNU_SOURCE", "1")] + ([("CYTHON_TRACE_NOGIL", "1")] if DEBUG else [])


class BuildExtensions(build_ext):
    """Says how far it is. What is installed has no symbols but those that are needed; what is built in place keeps
    its own, for profilers."""

    def build_extensions(self) -> None:
        self.compiled = itertools.count(1)
        if not self.inplace and not DEBUG:
            for extension in self.extensions:
                extension.extra_link_args.append("-Wl,-s")
        super().build_extensions()

    def build_extension(self, extension: Extension) -> None:
        super().build_extension(extension)
        print(f"[{next(self.compiled):2}/{len(self.extensions)}] Compiled {extension.name}", flush=True)


def extensions() -> list[Extension]:
    """One extension for each ``.pyx``; a header beside it is a dependency of every one."""
    headers = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("fastlog/**/*.h"))]
    found = []
    for path in sorted(ROOT.glob("fastlog/**/*.pyx")):
        source = path.relative_to(ROOT)
        found.append(
            Extension(
                ".".join(source.with_suffix("").parts),
                [str(source)],
                depends=headers,
                include_dirs=["fastlog", "fastlog/log", "fastlog/workers/net"],
                define_macros=macros,
                extra_compile_args=["-std=gnu11", "-Wno-unused-function", *compile_args],
                extra_link_args=list(link_args),
            )
        )
    return found


# The processes that translate import this file where Python does not fork (from 3.14 on).
if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit(f"fastlog runs on Linux only, clients included; this is {sys.platform}: use a container or a VM")
    processors = len(os.sched_getaffinity(0))
    sources = [] if os.environ.get("FASTLOG_NO_EXTENSIONS") == "1" else extensions()
    setup(
        ext_modules=cythonize(sources, compiler_directives=directives, nthreads=processors, emit_linenums=SANITIZE),
        cmdclass={"build_ext": BuildExtensions},
        options={"build_ext": {"parallel": processors}},
    )
