"""Alias of `supervisor.contrib.otel` for applications of version 0.1. Used in zygote and children."""

from supervisor.contrib.otel import instrument

__all__ = ["instrument"]
