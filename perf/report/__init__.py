"""One self-contained HTML page from result files: ours, the published numbers, the ceiling and the peers side by side.

``page.render`` makes it. ``markup`` escapes, ``numbers`` writes quantities, ``drawing`` has what the plots (``bars``,
``lines``, ``heat``) share and makes SVG of them, ``paper`` holds what was published, and ``sections``, ``sweep``,
``goals``, ``beside`` and ``tables`` say what is shown. No script, no font, nothing loaded: the page can be mailed and
printed.
"""
