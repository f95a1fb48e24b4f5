"""Who imports whom: every module belongs to a layer, and every import goes where its layer may look."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

# A package stands for all that is in it; "fastlog" is its __init__.py alone, the list of public names.
LAYERS = {
    "text": "fastlog.addresses fastlog.counts fastlog.escaping fastlog.standard_error",
    "ground": "fastlog.service_manager fastlog.kafka_codes"
    " fastlog.errors fastlog.installation fastlog.clock fastlog.limited_log fastlog.logs fastlog.retry fastlog.topics"
    " fastlog._crc fastlog._crc32c fastlog._bytes fastlog._views",
    "basics": "fastlog._segment fastlog._deep fastlog._batch fastlog._records fastlog._record_batch fastlog._frames"
    " fastlog._envelope fastlog._batch_header"
    " fastlog.arguments fastlog.codecs fastlog.batch_codecs fastlog.settings fastlog.java",
    "model": "fastlog.message fastlog._deep_batch fastlog._upconvert fastlog.record_batches fastlog.envelope"
    " fastlog.broker_settings fastlog.config fastlog.listening fastlog.durability",
    "wire": "fastlog.wire",
    "paths": "fastlog.zkpaths fastlog.segment_files",
    "coordination": "fastlog.coordination",
    "zkserver": "fastlog.zkserver",
    "log": "fastlog.log",
    "net": "fastlog.workers.net",  # connections, whatever is spoken on them
    "engine": "fastlog.workers.authorization fastlog.workers.services fastlog.workers._authorizer"
    " fastlog.workers._bridge fastlog.workers._engine fastlog.workers._forward fastlog.workers._jobs"
    " fastlog.workers._partitions fastlog.workers._reads fastlog.workers._reports fastlog.workers._unreadable"
    " fastlog.workers._writes",  # the log, whatever asks for it
    "kafka07": "fastlog.workers.kafka07",
    "kafka": "fastlog.workers.kafka",
    "workers": "fastlog.workers fastlog.acceptor fastlog.registry",  # the processes
    "coordinator": "fastlog.workers.coordinator",
    "moving": "fastlog.moving",  # directories of Apache Kafka's, while no broker has them
    "supervisor": "fastlog.supervisor fastlog.broker fastlog.binding",  # what starts the processes and watches them
    "connections": "fastlog.client",  # what the clients and the commands share
    "measuring": "fastlog.perf",  # what the perf commands are made of
    "mirroring": "fastlog.mirror",
    "clients": "fastlog.consumer fastlog.producer fastlog.audit fastlog.loghandler fastlog.aio"
    " fastlog.scanning fastlog.metrics fastlog.tracing",
    "spark": "fastlog.spark pyspark_fastlog",
    "tools": "fastlog fastlog.__main__ fastlog._broker_main fastlog.tools fastlog.testing fastlog.pytest_plugin",
    "jobs": "fastlog.spark.jobs",  # commands, as the tools are, that need Spark
    "tests": "tests",
    "perf": "perf",
}

# Besides its own; the ground layer has not even that.
SHARED = "text ground basics model wire paths"
MAY_IMPORT = {
    "text": "",
    "ground": "text",
    "basics": "text ground",
    "model": "text ground basics",
    "wire": "text ground",
    "paths": "text ground basics",
    "coordination": "text ground",
    "zkserver": "text ground basics",
    "log": "text ground basics model paths",  # not wire: the workers translate between the two
    "net": "text ground log",
    "engine": "text ground basics model paths log net",  # not wire: protocols translate between the two
    "kafka07": f"{SHARED} log net engine",
    "kafka": "text ground basics model paths log net engine",  # not wire, which is of 0.7 and fastlog's own
    "workers": f"{SHARED} log coordination net engine kafka07 kafka",
    "coordinator": f"{SHARED} log engine kafka workers",
    "moving": f"{SHARED} log workers coordinator",
    "supervisor": f"{SHARED} log workers coordinator",
    "connections": f"{SHARED} coordination",
    "clients": f"{SHARED} connections coordination",
    "measuring": f"{SHARED} connections clients coordination",
    "mirroring": f"{SHARED} connections clients coordination",
    "spark": f"{SHARED} connections clients coordination",
    "tools": f"{SHARED} connections clients measuring mirroring moving supervisor coordination zkserver",
    "jobs": f"{SHARED} connections clients coordination spark tools",
    "tests": "",  # itself not looked at
    "perf": " ".join(LAYERS),  # it imports what it measures, and starts brokers as the tests do
}

# Commands that work on the files of a log while no broker does.
EXCEPTIONS = {
    (f"fastlog.tools.{name}", "log") for name in ("dump_log", "fsck", "import_kafka", "export_kafka", "moving_report")
}

MOST_FLOORS = 14

SERVER_LAYERS = {"log", "net", "engine", "kafka07", "kafka", "workers", "coordinator", "supervisor"}
LAYER_BY_MODULE = {module: layer for layer, modules in LAYERS.items() for module in modules.split()}
OURS = {module.partition(".")[0] for module in LAYER_BY_MODULE}

CYTHON_COMMENT = re.compile(r'("""|\'\'\')(?:.|\n)*?\1|#[^\n]*')
CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<source>[.\w]+)[ \t]+)?c?import\b[ \t]*(?P<names>\([^)]*\)|[^\n]*)", re.MULTILINE
)


class Edge(NamedTuple):
    """``importer`` names ``imported``: a module, or what a module may turn out to be."""

    importer: str
    imported: str


def layer_or_none(module: str) -> str | None:
    """Return the layer of the module or of the nearest package around it that has one; None where there is none."""
    if module in LAYER_BY_MODULE:
        return LAYER_BY_MODULE[module]
    parent = module.rpartition(".")[0]
    return layer_or_none(parent) if parent and parent != "fastlog" else None


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each of our source files with the name of its module (stubs and .pxd share that of their module)."""
    for package in sorted(OURS - {"tests"}):
        for path in sorted((root / package).rglob("*")):
            if path.suffix in {".py", ".pyi", ".pyx", ".pxd"}:
                parts = path.relative_to(root).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of_python(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (source, names) of each import anywhere in the text: in functions and for type checkers as well."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]


def imports_of_cython(text: str) -> Iterator[tuple[str, list[str]]]:
    """The same for Cython's import and cimport lines."""
    text = CYTHON_COMMENT.sub("", text).replace("\\\n", " ")
    for found in CYTHON_IMPORT.finditer(text):
        names = [name.split()[0] for name in found["names"].strip("() \t").split(",") if name.strip()]
        if found["source"]:
            yield found["source"], names
        else:
            yield from ((name, []) for name in names)


@functools.cache
def edges_below(root: Path) -> frozenset[Edge]:
    """Return every import of ours by ours in the trees below ``root``."""
    files = list(source_files(root))
    modules = {module for module, _ in files} | set(LAYER_BY_MODULE)
    edges = set()
    for module, path in files:
        text = path.read_text(encoding="utf-8")
        found = imports_of_cython(text) if path.suffix in {".pyx", ".pxd"} else imports_of_python(text)
        package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
        for source, names in found:
            level = len(source) - len(source.lstrip("."))
            if level:
                around = package[: len(package) - level + 1]
                source = ".".join([*around, source[level:]] if source[level:] else around)
            if source.partition(".")[0] in OURS:
                for name in names or [""]:
                    inner = f"{source}.{name}"
                    edges.add(Edge(module, inner if inner in modules else source))
    return frozenset(edges)


def faults_below(root: Path) -> list[str]:
    """Return one line for each module without a layer and each import its layer may not make."""
    faults = {f"{module} belongs to no layer" for module, _ in source_files(root) if layer_or_none(module) is None}
    for edge in edges_below(root):
        layer, target = layer_or_none(edge.importer), layer_or_none(edge.imported)
        if layer is None or edge.importer == edge.imported or (edge.importer, target) in EXCEPTIONS:
            continue  # the first has its line already; the second is a .pyx that names its own .pxd
        if target == layer != "ground" or target in MAY_IMPORT[layer].split():
            continue
        faults.add(f"{edge.importer} ({layer}) imports {edge.imported} ({target or 'no layer'})")
    return sorted(faults)


def test_the_code_keeps_to_its_layers() -> None:
    """No module lacks a layer, none imports upward or across."""
    assert faults_below(ROOT) == []


def test_real_imports_are_seen() -> None:
    """Imports known to be there are among those found: Python's, Cython's, and between a .pyx and a package."""
    found = edges_below(ROOT)
    assert Edge("fastlog.config", "fastlog.errors") in found
    assert Edge("fastlog._segment", "fastlog._crc") in found
    assert Edge("fastlog.log._append", "fastlog.log._arena") in found


def test_every_rule_is_about_a_module_that_exists() -> None:
    """A rule for a module that was moved holds nobody back."""
    existing = {module for module, _ in source_files(ROOT)}
    assert {module for module in LAYER_BY_MODULE if module != "tests"} <= existing


def test_the_layers_have_an_order() -> None:
    """Nobody may import, over however many steps, a layer that may import it back."""

    def below(layer: str) -> set[str]:
        direct = set(MAY_IMPORT[layer].split()) - {layer}
        return direct.union(*map(below, direct))

    assert set(MAY_IMPORT) == set(LAYERS)
    for layer in MAY_IMPORT:
        assert layer not in below(layer)


def floors() -> dict[str, int]:
    """Which floor each layer is on: one above the highest of those that it may import."""

    @functools.cache
    def floor(layer: str) -> int:
        return 1 + max((floor(other) for other in set(MAY_IMPORT[layer].split()) - {layer}), default=0)

    return {layer: floor(layer) for layer in MAY_IMPORT}


def test_the_layers_are_fourteen_floors_at_most() -> None:
    """What stands on what is a house that one can see through; docs/architecture.md draws it."""
    assert max(floors().values()) <= MOST_FLOORS
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Who may import whom")[2]
    drawn = {
        name: int(number)
        for number, names in re.findall(r"^\| (\d+) \| (.*) \|$", text, re.M)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert drawn == {layer: floor for layer, floor in floors().items() if layer != "tests"}


def circles_in(edges: frozenset[Edge] | set[Edge], modules: set[str]) -> list[set[str]]:
    """The largest sets of modules of which each imports each, over however many others of the set."""
    imported: dict[str, set[str]] = {module: set() for module in modules}
    for importer, target in edges:
        if importer in modules and target in modules and importer != target:
            imported[importer].add(target)

    @functools.cache
    def reached(module: str) -> frozenset[str]:
        found: set[str] = set()
        ahead = [module]
        while ahead:
            new = imported[ahead.pop()] - found
            found |= new
            ahead += new
        return frozenset(found)

    found: list[set[str]] = []
    for module in sorted(modules):
        if module in reached(module) and not any(module in circle for circle in found):
            found.append({other for other in reached(module) if module in reached(other)})
    return found


def test_there_are_no_circles() -> None:
    """Two modules that need each other are one; types that are named, in stubs too, count."""
    modules = {module for module, _ in source_files(ROOT)}
    assert circles_in(edges_below(ROOT), modules) == []


def test_a_circle_is_found_over_any_number_of_modules() -> None:
    """Two, three, and one that hangs on a circle without being of it."""
    edges = {Edge("a", "b"), Edge("b", "a"), Edge("c", "d"), Edge("d", "e"), Edge("e", "c"), Edge("f", "a")}
    assert circles_in(edges, set("abcdef")) == [{"a", "b"}, {"c", "d", "e"}]
    assert circles_in(edges - {Edge("e", "c"), Edge("b", "a")}, set("abcdef")) == []


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("fastlog/errors.py", "import fastlog.clock", "fastlog.errors (ground) imports fastlog.clock (ground)"),
        ("fastlog/codecs.py", "from fastlog.message import Message", "(basics) imports fastlog.message (model)"),
        ("fastlog/codecs.py", "import os, fastlog.message as m", "(basics) imports fastlog.message (model)"),
        ("fastlog/codecs.py", "from fastlog import message", "(basics) imports fastlog.message (model)"),
        ("fastlog/codecs.py", "from . import message", "(basics) imports fastlog.message (model)"),
        ("fastlog/codecs.py", "from .wire.requests import encode", "(basics) imports fastlog.wire.requests (wire)"),
        ("fastlog/codecs.py", "def late():\n    import fastlog.config", "(basics) imports fastlog.config (model)"),
        ("fastlog/codecs.pyi", "from .config import Config", "(basics) imports fastlog.config (model)"),
        ("fastlog/message.py", "from fastlog import __version__", "(model) imports fastlog (tools)"),
        ("fastlog/log/files.py", "from ..wire import requests", "(log) imports fastlog.wire.requests (wire)"),
        ("fastlog/log/__init__.py", "from ..workers import x", "fastlog.log (log) imports fastlog.workers (workers)"),
        ("fastlog/_segment.pyx", "from fastlog.log._arena cimport Arena", "imports fastlog.log._arena (log)"),
        ("fastlog/_segment.pyx", "cimport cython, fastlog.message as m", "(basics) imports fastlog.message (model)"),
        (
            "fastlog/_segment.pxd",
            "from fastlog cimport (\n  _crc,  # fine\n  config,\n)",
            "imports fastlog.config (model)",
        ),
        ("fastlog/_segment.pyx", "from .log \\\n    cimport _arena", "(basics) imports fastlog.log._arena (log)"),
        (
            "fastlog/workers/net/_a.pyx",
            "from fastlog.workers._writes cimport Writes",
            "fastlog.workers.net._a (net) imports fastlog.workers._writes (engine)",
        ),
        (
            "fastlog/workers/net/_a.pxd",
            "from fastlog.workers.kafka07._machine cimport Kafka07",
            "(net) imports fastlog.workers.kafka07._machine (kafka07)",
        ),
        ("fastlog/workers/net/a.py", "from .. import child", "(net) imports fastlog.workers.child (workers)"),
        (
            "fastlog/workers/_reads.pyx",
            "from fastlog.workers.kafka07._codes cimport code_of",
            "fastlog.workers._reads (engine) imports fastlog.workers.kafka07._codes (kafka07)",
        ),
        ("fastlog/workers/services.py", "import fastlog.wire", "(engine) imports fastlog.wire (wire)"),
        (
            "fastlog/workers/kafka07/a.py",
            "from fastlog.workers.processor import run",
            "(kafka07) imports fastlog.workers.processor (workers)",
        ),
        ("fastlog/workers/a.py", "import fastlog.supervisor", "(workers) imports fastlog.supervisor (supervisor)"),
        ("fastlog/workers/a.py", "import fastlog.consumer", "(workers) imports fastlog.consumer (clients)"),
        ("fastlog/consumer/a.py", "import fastlog.log.files", "(clients) imports fastlog.log.files (log)"),
        ("fastlog/producer/a.py", "import fastlog.acceptor", "(clients) imports fastlog.acceptor (workers)"),
        ("fastlog/consumer/a.py", "import fastlog.registry", "(clients) imports fastlog.registry (workers)"),
        ("fastlog/consumer/a.py", "import fastlog.broker", "(clients) imports fastlog.broker (supervisor)"),
        ("fastlog/spark/a.py", "import fastlog.broker", "(spark) imports fastlog.broker (supervisor)"),
        ("fastlog/tools/lag.py", "import fastlog.log", "fastlog.tools.lag (tools) imports fastlog.log (log)"),
        ("fastlog/tools/lag.py", "import perf.report", "fastlog.tools.lag (tools) imports perf.report (perf)"),
        ("fastlog/testing.py", "import tests.harness", "fastlog.testing (tools) imports tests.harness (tests)"),
        ("fastlog/misc.py", "", "fastlog.misc belongs to no layer"),
    ],
)
def test_a_made_up_fault_is_found(tmp_path: Path, file: str, text: str, fault: str) -> None:
    """Each kind of import, each way to write it, from a place where it is not allowed, is one fault."""
    for existing in ("fastlog/wire/requests.py", "fastlog/log/_arena.pyx", "fastlog/workers/child.py", file):
        path = tmp_path / existing
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if existing == file else "")
    (found,) = faults_below(tmp_path)
    assert found.endswith(fault)


def test_the_declared_exceptions_are_no_faults(tmp_path: Path) -> None:
    """``dump_log`` and ``fsck`` read the log, ``perf`` imports what it measures; words in texts are no imports."""
    for file, text in {
        "fastlog/tools/dump_log.py": "import fastlog.log.recovery",
        "fastlog/tools/fsck.py": "from fastlog.log import recovery",
        "fastlog/tools/produce.py": "from fastlog import __version__\nimport fastlog.producer",
        "fastlog/_segment.pyx": '"""\nimport fastlog.broker\n"""\n# import fastlog.log\nfrom ._crc cimport crc32_span',
        "fastlog/_segment.pxd": "from fastlog._segment cimport Scan",
        "perf/fetch.py": "import fastlog.log, fastlog.workers.processor, fastlog.consumer, tests.harness.broker",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert faults_below(tmp_path) == []


def modules_loaded_with(layers: set[str]) -> tuple[set[str], set[str]]:
    """Import all modules of the layers in a fresh interpreter; return them, and all that is loaded then."""
    wanted = {module for module, path in source_files(ROOT) if path.suffix in {".py", ".pyx"}}
    wanted = {module for module in wanted if layer_or_none(module) in layers}
    program = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program, *sorted(wanted)], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert run.returncode == 0, run.stderr
    return wanted, set(run.stdout.split())


@pytest.mark.slow
def test_broker_processes_stay_light() -> None:
    """What a broker's processes import brings neither numpy nor asyncio, no client, and no other heavy package."""
    wanted, loaded = modules_loaded_with(SERVER_LAYERS)
    assert {"fastlog.broker", "fastlog.workers.processor"} <= wanted <= loaded
    heavy = {"numpy", "asyncio", "pandas", "pyarrow", "pyspark", "kazoo"}  # the keeper alone loads the last one, late
    assert loaded & heavy == set()
    assert {module for module in loaded if layer_or_none(module) in {"connections", "clients"}} == set()


@pytest.mark.slow
def test_clients_load_nothing_of_the_broker() -> None:
    """What a client imports brings nothing of the broker's side, also not through the list of public names."""
    wanted, loaded = modules_loaded_with({"connections", "clients"})
    assert wanted
    assert wanted <= loaded
    assert {module for module in loaded if layer_or_none(module) in SERVER_LAYERS} == set()
