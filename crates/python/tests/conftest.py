"""Every test that takes ``device`` runs on the CPU's reference and in the simulator."""

import pytest

import oxigemm


@pytest.fixture(params=["cpu", "sim"])
def device(request):
    before = oxigemm.get_device()
    oxigemm.set_device(request.param)
    yield request.param
    oxigemm.set_device(before)
