"""The limiter's tables and declarations against the newest cuda.h and nvml.h.

They are downloaded by the test and never committed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from buildsupport.native import ROOT
from tests.clients.environments import Wanted, interpreter
from tests.clients.test_limiter_on_real_driver import HOOKS, table
from tests.integration.limiter.test_abi import check_parameters, check_structs_and_numbers, declared_functions

# Of no version: what the next toolkit declares is to be classified too.
HEADER = Wanted("headers", ("nvidia-cuda-runtime", "nvidia-nvml-dev"), 0.1)
NVML_HOOKS = set(re.findall(r"^HV_HOOK\(NVML, (\w+)\)", (ROOT / "limiter/src/hooks.def").read_text(), re.MULTILINE))

pytestmark = [pytest.mark.clients, pytest.mark.slow]


@pytest.fixture(scope="module")
def header() -> Path:
    """The folder of both."""
    environment = interpreter(HEADER).parent.parent
    found = sorted(environment.glob("lib/python3*/site-packages/nvidia/*/include/cuda.h"))
    assert found, "the package has no cuda.h"
    return found[-1].parent


def family(name: str) -> str:
    return re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name)


def test_each_declared_function_is_classified(header: Path, tmp_path: Path) -> None:
    declared = set(declared_functions(tmp_path, header))
    assert len(declared) > 650
    assert declared - table().keys() == set()
    twins = {name for name in declared if family(name) in {family(hook) for hook in HOOKS}}
    assert twins - HOOKS == set()


def test_structs_and_numbers_are_those_of_the_header(header: Path, tmp_path: Path) -> None:
    check_structs_and_numbers(tmp_path, header)


def test_wrappers_take_as_many_parameters_as_the_functions_of_the_header(header: Path, tmp_path: Path) -> None:
    check_parameters(tmp_path, header)


def test_every_version_of_a_function_of_nvml_is_hooked(header: Path) -> None:
    declared = set(re.findall(r"\bDECLDIR (nvml\w+)\(", (header / "nvml.h").read_text()))
    assert len(declared) > 400
    assert declared >= NVML_HOOKS - {"nvmlInternalGetExportTable"}  # which no header tells
    twins = {name for name in declared if family(name) in {family(hook) for hook in NVML_HOOKS}}
    assert twins - NVML_HOOKS == set()


def test_every_function_of_nvml_that_hands_out_a_device_is_hooked(header: Path) -> None:
    """But by a device of an instance or of a unit, which was found by one of these."""
    text = re.sub(r"\s+", " ", (header / "nvml.h").read_text())
    giving = {name for name, taken in re.findall(r"\bDECLDIR (nvml\w+)\(([^()]*)\)", text) if "nvmlDevice_t *" in taken}
    assert len(giving) > 8
    assert giving - NVML_HOOKS == {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlUnitGetDevices"}
