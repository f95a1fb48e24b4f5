"""Builds the extensions: every ``.pyx`` below ``fastlog/`` is one module.

``FASTLOG_DEBUG=1`` builds with bounds checks, C assertions and line tracing. ``FASTLOG_NO_EXTENSIONS=1`` leaves the
extensions out: an editable installation would compile them all again, although ``build_ext --inplace`` just did.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("FASTLOG_DEBUG") == "1"
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
compile_args = ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-fno-semantic-interposition"]
macros = [("_GNU_SOURCE", "1")] + ([("CYTHON_TRACE_NOGIL", "1")] if DEBUG else [])


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
                include_dirs=["fastlog", "fastlog/log", "fastlog/workers"],
                define_macros=macros,
                extra_compile_args=["-std=gnu11", "-Wno-unused-function", *compile_args],
            )
        )
    return found


processors = os.cpu_count() or 1
sources = [] if os.environ.get("FASTLOG_NO_EXTENSIONS") == "1" else extensions()
setup(
    ext_modules=cythonize(sources, compiler_directives=directives, nthreads=processors),
    options={"build_ext": {"parallel": processors}},
)
