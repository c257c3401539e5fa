"""The parts of the build that pyproject.toml can't say: C libraries, generated code, cffi modules."""

from setuptools import setup

from buildsupport.commands import BuildExtensions, BuildPython
from buildsupport.native import CFFI_MODULES

setup(
    cffi_modules=list(CFFI_MODULES),
    cmdclass={"build_ext": BuildExtensions, "build_py": BuildPython},
    # One wheel for all later Pythons: the cffi modules use the limited API.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
