"""Drivers of earlier branches: what they show is what the table says had come by then."""

from __future__ import annotations

import re

import pytest

from buildsupport.native import ROOT

TABLE = (ROOT / "simulator/cuda/driver_api.def").read_text()
SINCE = [(int(v), s) for v, s in re.findall(r"^SIM_(?:API|API_THREAD)\(\w+, (\d+), (\w+)\)", TABLE, re.MULTILINE)]
ALWAYS = set(re.findall(r"^SIM_EXPORT\((\w+)\)", TABLE, re.MULTILINE)) - {"cuGetProcAddress_v2_ptsz"}


@pytest.mark.parametrize(("branch", "cuda"), [(535, 12020), (550, 12040)])
def test_the_list_of_exports_is_the_table_up_to_that_version(branch: int, cuda: int) -> None:
    listed = set(re.findall(r"^ +(cu\w+);", (ROOT / f"simulator/cuda/libcuda-r{branch}.map").read_text(), re.MULTILINE))
    assert listed == {symbol for since, symbol in SINCE if since <= cuda} | ALWAYS
