"""setuptools commands: the usual ones, with our generated and compiled parts before them."""

from __future__ import annotations

from pathlib import Path

from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

from buildsupport.native import ROOT, build_libraries
from buildsupport.protos import generate


class BuildPython(build_py):
    """Generates the protobuf modules first, so that they are collected like all others."""

    def run(self) -> None:
        generate()
        super().run()


class BuildExtensions(build_ext):
    """Builds the cffi modules, and the C libraries as package data beside them."""

    def run(self) -> None:
        generate()
        base = ROOT if self.inplace or self.editable_mode else Path(self.build_lib)
        build_libraries(base / "hypervisor" / "native")
        super().run()
