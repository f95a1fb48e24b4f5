"""Builds the compiled half of the format."""

from tests.toy_format import build

build()
