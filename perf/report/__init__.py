"""One self-contained HTML page from result files: ours, the published numbers, the ceiling and the peers side by side.

``page.render`` makes it. ``markup`` escapes, ``numbers`` writes quantities, ``scales`` and ``canvas`` are what the
plots (``bars``, ``lines``, ``heat``) are drawn with, ``paper`` holds what was published, and ``sections``, ``sweep``,
``goals`` and ``tables`` say what is shown. No script, no font, nothing loaded: the page can be mailed and printed.
"""
